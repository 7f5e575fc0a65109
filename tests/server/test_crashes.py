"""The server is killed at every labelled step of every change of a sandbox. What a client was told of is there again,
and nothing else is left."""

import http.client
import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import corral.server
from support.leftovers import adopt_orphans, list_descendants, reap_orphans, take_stock, watch_differences
from support.serving import ServedProcess, served

VARIABLE = "CORRAL_TEST_CRASH_AT"


@dataclass(frozen=True)
class Place:
    """One server for all tests of this file, and one sandbox that nothing is done to."""

    server: ServedProcess
    witness: str
    others: frozenset[int]
    """Processes of this test run that were there before: what they start meanwhile, for other tests, is not ours."""

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """Raises: OSError if the server goes away before it has answered."""
        host, _, port = self.server.url.removeprefix("http://").partition("/")[0].partition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=60)
        headers = {"Authorization": f"Bearer {self.server.key}", "Content-Type": "application/json"}
        try:
            connection.request(method, "/api" + path, json.dumps(body) if body is not None else None, headers)
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        assert answer.status == 200, f"{method} {path}: {answer.status} {text!r}"
        return json.loads(text) if text else None

    def sandboxes(self) -> dict[str, dict[str, Any]]:
        """Those that the server knows, without the witness."""
        items = self.ask("GET", "/sandbox")["items"]
        return {item["id"]: item for item in items if item["id"] != self.witness}

    def snapshots(self) -> set[str]:
        """Names, without the base."""
        return {item["name"] for item in self.ask("GET", "/snapshots")["items"]} - {"default"}

    def execute(self, sandbox_id: str, command: str) -> str:
        """What it prints."""
        path = f"/toolbox/{sandbox_id}/toolbox/process/execute"
        answer = self.ask("POST", path, {"command": f"bash -c '{command}'"})
        assert answer["exitCode"] == 0
        return str(answer["result"])

    def new(self) -> str:
        """A sandbox with a file in it."""
        sandbox_id = str(self.ask("POST", "/sandbox", {})["id"])
        self.execute(sandbox_id, "echo kept > file")
        return sandbox_id

    def use(self, sandbox_id: str) -> None:
        """Whatever state it is in, it can be brought to run, and its file is there."""
        if self.ask("GET", f"/sandbox/{sandbox_id}")["state"] != "started":
            self.ask("POST", f"/sandbox/{sandbox_id}/start")
        assert self.execute(sandbox_id, "cat file") == "kept\n"

    def stock(self) -> dict[str, list[str]]:
        reap_orphans(spare={self.server.pid})
        found = take_stock(self.server.data_folder, without=self.others)
        found["files"] = [path for path in found["files"] if not path.startswith("server/")]
        return found


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    adopt_orphans()
    others = frozenset(list_descendants(os.getpid()))
    try:
        with served(tmp_path_factory.mktemp("crashes") / "data") as server:
            place = Place(server, Place(server, "", others).new(), others)
            server.stop(signal.SIGTERM)
            server.start()  # what a restart brings with it is no leftover
            place.use(place.witness)
            yield place
    finally:
        adopt_orphans(on=False)


Prepare = Callable[[Place], str]
Act = Callable[[Place, str], object]
After = Callable[[Place, str, str], None]


@dataclass(frozen=True)
class Operation:
    """Something that changes a sandbox: what must be there before, how it is asked for, and what must hold after."""

    family: str
    """How its steps are called."""
    prepare: Prepare
    act: Act
    after: After


def post(verb: str, body: dict[str, Any] | None = None) -> Act:
    return lambda place, sandbox_id: place.ask("POST", f"/sandbox/{sandbox_id}/{verb}", body)


def stopped(place: Place) -> str:
    sandbox_id = place.new()
    place.ask("POST", f"/sandbox/{sandbox_id}/stop")
    return sandbox_id


def paused(place: Place) -> str:
    sandbox_id = place.new()
    place.ask("POST", f"/sandbox/{sandbox_id}/pause")
    return sandbox_id


def with_snapshot(place: Place) -> str:
    sandbox_id = place.new()
    place.ask("POST", f"/sandbox/{sandbox_id}/snapshot", {"name": "taken"})
    return sandbox_id


def with_much(place: Place) -> str:
    sandbox_id = place.new()
    place.execute(sandbox_id, "head -c 50000000 /dev/urandom > much")
    return sandbox_id


def between(before: str, then: str) -> After:
    """Before the backend has done it, one of the two states; from there on the second."""

    def check(place: Place, sandbox_id: str, moment: str) -> None:
        seen = place.sandboxes()
        assert set(seen) == {sandbox_id}
        allowed = {before, then} if moment in ("intent-written", "begun") else {then}
        assert seen[sandbox_id]["state"] in allowed
        place.use(sandbox_id)

    return check


def made_or_not(place: Place, source: str, moment: str) -> None:
    """A new sandbox is there once the database says so, and before that not."""
    new = {key: item for key, item in place.sandboxes().items() if key != source}
    assert len(new) == (moment == "acknowledged")
    for sandbox_id, item in new.items():
        assert item["state"] == "started"
        assert place.execute(sandbox_id, "echo works") == "works\n"
    if source:
        place.use(source)
        for sandbox_id in new:
            place.use(sandbox_id)


def gone(place: Place, sandbox_id: str, moment: str) -> None:
    assert not place.sandboxes()


def resized(place: Place, sandbox_id: str, moment: str) -> None:
    seen = place.sandboxes()[sandbox_id]
    assert (seen["state"], seen["cpu"], seen["memory"]) == ("started", 2, 2)
    place.use(sandbox_id)


def resized_while_stopped(place: Place, sandbox_id: str, moment: str) -> None:
    seen = place.sandboxes()[sandbox_id]
    assert (seen["state"], seen["disk"]) == ("stopped", 4)
    place.use(sandbox_id)


def snapshot_taken_or_not(place: Place, sandbox_id: str, moment: str) -> None:
    assert place.snapshots() == ({"taken"} if moment == "acknowledged" else set())
    if moment == "acknowledged":
        copy = place.ask("POST", "/sandbox", {"snapshot": "taken"})["id"]
        place.use(copy)
        place.ask("DELETE", f"/sandbox/{copy}")
    place.use(sandbox_id)


def awake_again(place: Place, sandbox_id: str, moment: str) -> None:
    assert not place.snapshots()
    assert place.sandboxes()[sandbox_id]["state"] == "started"
    place.use(sandbox_id)


def snapshot_gone(place: Place, sandbox_id: str, moment: str) -> None:
    assert not place.snapshots()
    place.use(sandbox_id)


OPERATIONS = {
    "create": Operation("create", lambda place: "", lambda place, _: place.ask("POST", "/sandbox", {}), made_or_not),
    "fork": Operation("create", Place.new, post("fork", {}), made_or_not),
    "fork of a stopped one": Operation("create", stopped, post("fork", {}), made_or_not),
    "delete": Operation("delete", Place.new, lambda place, it: place.ask("DELETE", f"/sandbox/{it}"), gone),
    "delete a stopped one": Operation("delete", stopped, lambda place, it: place.ask("DELETE", f"/sandbox/{it}"), gone),
    "stop": Operation("stop", Place.new, post("stop"), between("started", "stopped")),
    "start": Operation("start", stopped, post("start"), between("stopped", "started")),
    "pause": Operation("pause", Place.new, post("pause"), between("started", "paused")),
    "resume": Operation("resume", paused, post("start"), between("paused", "started")),
    "archive": Operation("archive", stopped, post("archive"), between("stopped", "archived")),
    "resize": Operation("resize", Place.new, post("resize", {"cpu": 2, "memory": 2}), resized),
    "resize a stopped one": Operation("resize", stopped, post("resize", {"disk": 4}), resized_while_stopped),
    "snapshot": Operation("snapshot", Place.new, post("snapshot", {"name": "taken"}), snapshot_taken_or_not),
    "rest": Operation("rest", with_much, post("snapshot", {"name": "taken"}), awake_again),
    "forget": Operation("forget", with_snapshot, lambda place, _: place.ask("DELETE", "/snapshots/taken"),
                        snapshot_gone),
}  # fmt: skip
DONE = ("intent-written", "done", "acknowledged")
MOMENTS = {
    "create": ("intent-written", "made", "noted", "detached", "acknowledged"),
    "delete": ("intent-written", "ended", "forgotten"),
    "archive": ("begun", "acknowledged"),
    "rest": ("intent-written", "stopped", "started"),
    **dict.fromkeys(("stop", "start", "pause", "resume", "resize", "snapshot", "forget"), DONE),
}
FIRST_PASS = {("create", "intent-written"), ("create", "acknowledged")}
CASES = [(name, moment) for name, operation in OPERATIONS.items() for moment in MOMENTS[operation.family]]


def test_every_step_in_the_source_is_tried() -> None:
    folder = Path(next(iter(corral.server.__path__)))
    source = "\n".join(file.read_text(encoding="utf-8") for file in folder.rglob("*.py"))
    alone = re.findall(r'steps\.reached\("(.*)"\)', source)
    shared = re.findall(r'steps\.reached\(f"{change}:(.*)"\)', source)
    assert len(re.findall(r"steps\.reached\(", source)) == len(alone) + len(shared)
    changes = re.findall(r'_changing\(\s*sandbox, "(\w+)"', source)
    found = alone + [f"{change}:{moment}" for change in changes for moment in shared]
    assert sorted(found) == sorted(f"{family}:{moment}" for family, moments in MOMENTS.items() for moment in moments)
    assert {operation.family for operation in OPERATIONS.values()} == set(MOMENTS)


def choose_marks(name: str, moment: str) -> list[pytest.MarkDecorator]:
    """All of them take minutes: `make test` has two, `make check` those of making and deleting, `make soak` all."""
    marks = [pytest.mark.check] if name in ("create", "delete") else [pytest.mark.soak]
    if (name, moment) in FIRST_PASS:
        marks = []
    # As an ordinary user there may be no limits to change, and what was written is measured now and then only.
    return [*marks, pytest.mark.needs_root] if name in ("resize", "rest") else marks


@pytest.mark.parametrize(
    ("name", "moment"), [pytest.param(name, moment, marks=choose_marks(name, moment)) for name, moment in CASES]
)
def test_killed_at_a_step(place: Place, name: str, moment: str) -> None:
    server, operation = place.server, OPERATIONS[name]
    before = place.stock()
    sandbox_id = operation.prepare(place)
    server.kill()
    server.start(env={VARIABLE: f"{operation.family}:{moment}"})
    with pytest.raises(OSError):  # noqa: PT011 - the connection drops, in one way or another
        operation.act(place, sandbox_id)
    assert server.wait() == -signal.SIGKILL, "the step was not reached"
    server.start()
    told = {key: item["state"] for key, item in place.sandboxes().items()}
    server.kill()
    server.start()
    assert {key: item["state"] for key, item in place.sandboxes().items()} == told, "a second restart changes nothing"
    operation.after(place, sandbox_id, moment)
    place.use(place.witness)
    for left in place.snapshots():
        place.ask("DELETE", f"/snapshots/{left}")
    for left in place.sandboxes():  # last, because a deletion waits for its turn to empty the trash
        place.ask("DELETE", f"/sandbox/{left}")
    more = watch_differences(before, place.stock)
    assert not more, list_descendants(os.getpid(), without=place.others)
