"""The live page: who may see it, what it sends, and that no reader ever slows the contest."""

import asyncio
import contextlib
import json
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.errors import BackendUnavailableError
from corral.forge.events import ForgeEvent
from corral.forge.lanes import LANE_CHARACTERS
from corral.forge.runfolder import EVENTS, RunWriter, read_run
from corral.forge.watch import WatchServer, hub
from corral.forge.watch.hub import Hub
from corral.forge.watch.tail import Tail
from support.forge_runs import HOSTILE_LINE, NEEDLE, write_run

GUARD_SECONDS = 60.0


@dataclass
class Answer:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes = b""


async def ask(
    server: WatchServer, path: str, *, method: str = "GET", host: str = "", headers: str = "", raw: bytes = b""
) -> Answer:
    """One request, as any user of this machine may send it. A path that begins with a slash has no secret in it."""
    port = int(server.url.split(":")[2].partition("/")[0])
    where = path if path.startswith("/") else f"/{server.url.split('/')[3]}/{path}"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(
            raw or f"{method} {where} HTTP/1.1\r\nHost: {host or f'127.0.0.1:{port}'}\r\n{headers}\r\n".encode()
        )
        async with asyncio.timeout(GUARD_SECONDS):
            data = await reader.read()
    finally:
        writer.close()
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    pairs = (line.partition(": ") for line in lines[1:])
    return Answer(int(lines[0].split()[1]), {name.lower(): value for name, _, value in pairs}, body)


@dataclass
class Stream:
    """A reader of server-sent events."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    seen: list[tuple[str, str, Any]] = field(default_factory=list)

    async def next(self) -> tuple[str, str, Any]:
        """Id, kind and data of the next event."""
        found: dict[str, str] = {}
        async with asyncio.timeout(GUARD_SECONDS):
            while True:
                line = (await self.reader.readuntil(b"\n")).decode().rstrip("\n")
                if line and not line.startswith(":"):
                    name, _, value = line.partition(": ")
                    found[name] = value
                elif "data" in found:
                    self.seen.append((found["id"], found["event"], json.loads(found["data"])))
                    return self.seen[-1]
                else:
                    found.clear()

    async def until(self, kind: str) -> Any:
        """The data of the first event of that kind."""
        while True:
            _, found, data = await self.next()
            if found == kind:
                return data


@asynccontextmanager
async def listen(server: WatchServer, *, last: str = "", limit: int = 64 * 1024 * 1024) -> AsyncIterator[Stream]:
    port = int(server.url.split(":")[2].partition("/")[0])
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=limit)
    try:
        again = f"Last-Event-ID: {last}\r\n" if last else ""
        path = f"/{server.url.split('/')[3]}/events"
        writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{again}\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        assert b" 200 " in head
        assert b"text/event-stream" in head
        yield Stream(reader, writer)
    finally:
        writer.close()


def start_event(*ids: str, repeat: int = 1, **more: Any) -> ForgeEvent:
    named = [{"id": id_, "name": id_, "description": ""} for id_ in ids]
    data = {
        "run": "r",
        "objective": "o",
        "candidates": named,
        "jobs": 2,
        "repeat": repeat,
        "seed": 0,
        "backend": "memory",
    }
    return ForgeEvent("run-started", 0.0, data=data | more)


def say(candidate: str, text: str, *, number: int = 1) -> ForgeEvent:
    return ForgeEvent("output", 1.0, candidate, number, {"stream": "stdout", "text": text})


@pytest.fixture
async def finished(tmp_path: Path) -> AsyncIterator[WatchServer]:
    """A run that has ended, read from its folder."""
    async with WatchServer(write_run(tmp_path / "run")) as server:
        async with listen(server) as stream:
            while True:  # until the log was read to its end
                _, _, data = await stream.next()
                if data.get("state") == "finished" or data.get("data", {}).get("state") == "finished":
                    break
        yield server


async def test_page_is_for_whoever_knows_the_address(finished: WatchServer) -> None:
    page = await ask(finished, "")
    assert page.status == 200
    assert b"watch.js" in page.body
    assert page.headers["content-security-policy"].startswith("default-src 'none'; script-src 'self';")
    for header, value in (("x-content-type-options", "nosniff"), ("referrer-policy", "no-referrer"),
                          ("cache-control", "no-store"), ("x-frame-options", "DENY"),
                          ("cross-origin-resource-policy", "same-origin")):  # fmt: skip
        assert page.headers[header] == value
    assert (await ask(finished, "watch.js")).headers["content-type"].startswith("text/javascript")
    assert (await ask(finished, "watch.css")).headers["content-type"].startswith("text/css")
    for path in (
        "/",
        "/events",
        "/wrong/",
        "/wrong/events",
        f"/{finished.url.split('/')[3]}",
        f"/{finished.url.split('/')[3]}x/",
    ):
        assert (await ask(finished, path)).status == 404, path


async def test_another_name_for_this_machine_is_refused(finished: WatchServer) -> None:
    port = finished.url.split(":")[2].partition("/")[0]
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1", f"127.0.0.1:{port}.evil.example", "127.0.0.1:1"):
        assert (await ask(finished, "", host=host)).status == 403, host
    assert (await ask(finished, "", host=f"localhost:{port}")).status == 200
    twice = await ask(finished, "", raw=f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nHost: evil\r\n\r\n".encode())
    assert twice.status == 400


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "HEAD", "get"])
async def test_only_get_is_taken(finished: WatchServer, method: str) -> None:
    assert (await ask(finished, "", method=method)).status == 405


@pytest.mark.parametrize(
    "raw", [b"\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/2\r\n\r\n", b"GET http://x/ HTTP/1.1\r\n\r\n",
            b"\0" * 100 + b"\r\n\r\n", b"GET / HTTP/1.1\r\nno header\r\n\r\n",
            b"GET / HTTP/1.1\r\nX: " + b"x" * 100_000 + b"\r\n\r\n"],
    ids=["empty", "short", "version", "absolute", "zeros", "no-header", "long"],
)  # fmt: skip
async def test_what_is_no_request_is_refused(finished: WatchServer, raw: bytes) -> None:
    assert (await ask(finished, "", raw=raw)).status in (400, 431)
    assert (await ask(finished, "")).status == 200


async def test_artifacts_are_sent_as_text_pictures_or_downloads(finished: WatchServer, tmp_path: Path) -> None:
    run = read_run(tmp_path / "run")
    names = [file.path for file in run.attempts["thorough", 1].artifacts]
    found = {name: await ask(finished, f"artifact/thorough/1/{index}") for index, name in enumerate(names)}
    assert found["artifact.md"].headers["content-type"] == "text/plain; charset=utf-8"
    assert found["artifact.md"].body.startswith(b"# Release 2.0")
    assert found["sketch.png"].headers["content-type"] == "image/png"
    assert found["notes/page.svg"].headers["content-type"] == "text/plain; charset=utf-8"
    assert found["notes/numbers.bin"].body.startswith(b"00000000  00 01")
    assert b"[the first 512 KiB of 820 KiB]" in found["big.txt"].body
    for answer in found.values():
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "sandbox" in answer.headers["content-security-policy"]
    whole = await ask(finished, f"download/thorough/1/{names.index('big.txt')}")
    assert whole.body == (tmp_path / "run" / "thorough" / "big.txt").read_bytes()
    assert whole.headers["content-disposition"] == 'attachment; filename="big.txt"'
    assert whole.headers["content-type"] == "application/octet-stream"
    hostile = await ask(finished, "download/rubbish/1/1")
    assert re.fullmatch(r'attachment; filename="[\w.-]+"', hostile.headers["content-disposition"])


@pytest.mark.parametrize(
    "path",
    ["artifact/thorough/1/99", "artifact/thorough/1/-1", "artifact/thorough/2/0", "artifact/nobody/1/0",
     "artifact/thorough/1/0/x", "artifact/..%2f..%2fetc/1/0", "artifact/../run.json", "artifact/%2e%2e/1/passwd",
     "run.json", "../run.json", "events.jsonl", "artifact/thorough/1/٣",
     "artifact/thorough/1/99999999999999999999", "download/thorough/1/99"],
)  # fmt: skip
async def test_what_is_on_no_list_can_not_be_asked_for(finished: WatchServer, path: str) -> None:
    assert (await ask(finished, path)).status == 404


async def test_an_artifact_that_became_a_link_is_not_followed(finished: WatchServer, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("a secret of the host")
    artifact = tmp_path / "run" / "fast" / "artifact.md"
    artifact.unlink()
    artifact.symlink_to(tmp_path / "secret")
    assert b"secret of the host" not in (await ask(finished, "artifact/fast/1/0")).body
    assert (await ask(finished, "download/fast/1/0")).status == 404
    artifact.unlink()
    os.mkfifo(artifact)
    assert (await ask(finished, "download/fast/1/0")).status == 404


async def test_a_page_that_comes_late_gets_the_state_then_the_news(tmp_path: Path) -> None:
    async with WatchServer(tmp_path, follow=False) as server:
        server.listener(start_event("a", "b"))
        server.listener(ForgeEvent("phase", 0.5, "a", 1, {"phase": "run"}))
        server.listener(say("a", "first\n"))
        async with listen(server) as stream:
            state = await stream.until("snapshot")
            assert state["lanes"][0] | {"log": None} == state["lanes"][0] | {
                "log": None,
                "phase": "run",
                "begun_at": 0.5,
            }
            assert state["lanes"][0]["log"] == [["stdout", "first\n"]]
            server.listener(say("a", "second\n"))
            assert (await stream.until("output"))["data"]["text"] == "second\n"
            last = stream.seen[-1][0]
        server.listener(say("a", "third\n"))
        async with listen(server, last=last) as stream:  # as a browser does when the connection was lost
            _, kind, data = await stream.next()
            assert (kind, data["data"]["text"]) == ("output", "third\n")
        for unknown in ("00000000-1", f"{last.partition('-')[0]}-99999", "rubbish", f"{last.partition('-')[0]}--1"):
            async with listen(server, last=unknown) as stream:
                assert (await stream.next())[1] == "snapshot", unknown


async def test_events_show_nothing_of_the_log_twice_and_no_hostile_character(tmp_path: Path) -> None:
    found = Hub()
    found.add(start_event("a", objective=f"\u202e{HOSTILE_LINE}"))
    found.add(say("a", "\x1b[3"))
    found.add(say("a", "1mred\u202e\x00\n"))
    attempt = read_run(write_run(tmp_path / "run")).attempts["thorough", 1]
    found.add(ForgeEvent("attempt-ended", 2.0, "a", 1, attempt.to_json()))
    sent = "".join(message.text for message in found.since(1) or ())
    assert NEEDLE not in sent
    for text in (sent, found.snapshot()):
        assert "\\u001b" not in text
        assert "\\u202e" not in text
        assert "\\u0000" not in text
    assert "red\\u27e8U+202E\\u27e9\\u2400" in sent


async def test_the_end_of_a_log_is_shown_also_inside_an_unfinished_sequence(tmp_path: Path) -> None:
    attempt = read_run(write_run(tmp_path / "run")).attempts["thorough", 1]
    hub = Hub()
    hub.add(start_event("a", "b"))
    hub.add(ForgeEvent("output", 1.0, "a", 1, {"stream": "stderr", "text": "an error \x1b["}))
    hub.add(say("a", f"all done\x1b]0;{'x' * 290}"))
    hub.add(say("b", "cut off\x1bP"))
    before = hub.number
    hub.add(ForgeEvent("attempt-ended", 2.0, "a", 1, attempt.to_json()))
    (message,) = hub.since(before) or ()
    assert json.loads(message.text)["data"]["log"] == [["stderr", "␛["], ["stdout", f"␛]0;{'x' * 290}"]]
    assert hub.lanes["a"].log[-1] == ("stdout", f"␛]0;{'x' * 290}")
    hub.lose()
    assert [text for _, text in hub.lanes["b"].log] == ["cut off", "␛P"]


def test_memory_is_bounded_whatever_is_printed() -> None:
    found = Hub()
    found.add(start_event(*(f"c{number}" for number in range(20))))
    for number in range(20_000):
        found.add(say(f"c{number % 20}", "x" * 1000 + "\n"))
    assert len(found.snapshot()) < 20 * (LANE_CHARACTERS + 2000)
    assert sum(len(message.text) for message in found.since(found.number - 4000) or ()) < hub.RING_CHARACTERS + 2000
    assert found.since(1) is None, "a reader that is so far behind gets the state"
    found.add(say("c0", "y" * 10_000_000))
    assert len(found.snapshot()) < 20 * (LANE_CHARACTERS + 2000) + 100_000


async def test_a_reader_that_reads_nothing_slows_nobody_and_gets_the_state_later(tmp_path: Path) -> None:
    async with WatchServer(tmp_path, follow=False) as server:
        server.listener(start_event("a"))
        # Room for one state: asyncio stops reading for it when twice as much has come.
        async with listen(server, limit=256 * 1024) as slow, listen(server) as quick:
            await slow.until("snapshot")
            await quick.until("snapshot")
            for number in range(2000):  # forty megabytes, more than all buffers on the way can hold
                server.listener(say("a", f"{number:06d} {'x' * 20_000}\n"))
                if number % 20 == 0:
                    await asyncio.sleep(0)
            server.listener(say("a", "the end\n"))
            for stream in (quick, slow):
                while "the end" not in json.dumps(await stream.next()):
                    pass
            assert len([1 for _, kind, _ in slow.seen if kind == "snapshot"]) >= 2
            assert len(slow.seen) < 2000


async def test_readers_that_are_gone_are_forgotten(tmp_path: Path) -> None:
    async with WatchServer(tmp_path, follow=False) as server:
        server.listener(start_event("a"))
        for _ in range(10):
            async with listen(server) as stream:
                await stream.until("snapshot")
        async with asyncio.timeout(GUARD_SECONDS):
            while server._clients:
                server.listener(say("a", "x\n"))
                await asyncio.sleep(0.01)


async def test_too_many_at_once_are_refused_and_closing_ends_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("corral.forge.watch.server._MAX_CLIENTS", 3)
    server = WatchServer(tmp_path, follow=False)
    await server.start()
    async with listen(server) as one, listen(server), listen(server):
        await one.until("snapshot")
        assert (await ask(server, "")).status == 503
        await server.aclose()
        with pytest.raises(asyncio.IncompleteReadError):
            await one.until("never")
    await server.aclose()
    with pytest.raises(OSError, match=r".*"):
        await ask(server, "")


async def test_those_who_show_no_secret_keep_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corral.forge.watch.server._MAX_CLIENTS", 3)
    monkeypatch.setattr("corral.forge.watch.server._MAX_STRANGERS", 20)
    async with WatchServer(tmp_path, follow=False) as server, contextlib.AsyncExitStack() as idle:
        port = int(server.url.split(":")[2].partition("/")[0])
        readers = []
        for number in range(70):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            idle.callback(writer.close)
            if number % 2:
                writer.write(b"GET / HTTP/1.1\r\nHo")  # and never the rest
            readers.append(reader)
        assert (await ask(server, "")).status == 200
        async with listen(server) as one, asyncio.timeout(GUARD_SECONDS):
            await one.until("snapshot")
            with contextlib.suppress(ConnectionError):
                assert await readers[0].read() == b"", "the one who came first goes first"
        assert len(server._strangers) <= 20


async def test_a_taken_port_is_said(tmp_path: Path) -> None:
    async with WatchServer(tmp_path) as server:
        port = int(server.url.split(":")[2].partition("/")[0])
        with pytest.raises(BackendUnavailableError, match=str(port)):
            await WatchServer(tmp_path, port=port).start()


async def test_events_may_come_from_another_thread(tmp_path: Path) -> None:
    async with WatchServer(tmp_path, follow=False) as server, listen(server) as stream:
        await stream.until("snapshot")
        await asyncio.to_thread(server.listener, start_event("a"))
        assert [lane["id"] for lane in (await stream.until("snapshot"))["lanes"]] == ["a"]


async def test_a_log_is_followed_while_another_writes_it(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    async with WatchServer(folder) as server, listen(server) as stream:  # it is not there yet
        assert (await stream.until("snapshot"))["state"] == "waiting"
        writer = RunWriter.begin(folder)
        try:
            writer.append(start_event("a"))
            assert (await stream.until("snapshot"))["state"] == "running"
            line = say("a", "in two parts\n").to_line().encode() + b"\n"
            with (folder / EVENTS).open("ab", buffering=0) as log:
                log.write(b"rubbish\n\n{}\n" + line[:20])
                await asyncio.sleep(0)
                log.write(line[20:])
            assert (await stream.until("output"))["data"]["text"] == "in two parts\n"
        finally:
            writer.close()
        # No process holds the folder, and there was no event of its end.
        assert (await stream.until("snapshot"))["state"] == "broken off"


def test_a_torn_line_that_was_cut_off_is_forgotten(tmp_path: Path) -> None:
    seen: list[ForgeEvent] = []
    log = tmp_path / "log"
    tail = Tail(log, seen.append)
    log.write_bytes(say("a", "one").to_line().encode() + b'\n{"at":2,"ki')
    tail.take(tail._read())
    log.write_bytes(say("a", "one").to_line().encode() + b"\n")
    assert tail._read() == b""
    with log.open("ab") as file:
        file.write(say("a", "two").to_line().encode() + b"\n")
    tail.take(tail._read())
    assert [event.data["text"] for event in seen] == ["one", "two"]


def test_a_line_without_end_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("corral.forge.runfolder._MAX_LINE_BYTES", 1000)
    seen: list[ForgeEvent] = []
    tail = Tail(tmp_path / "log", seen.append)
    for _ in range(100):
        tail.take(b"x" * 100)
    assert tail._parser._parts == []
    tail.take(b"\n" + say("a", "after").to_line().encode() + b"\n")
    assert [event.data["text"] for event in seen] == ["after"]


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["id", "path", "phase", "artifacts", "candidates", "scores", "gates", "text"]), inner
    ),
    max_leaves=8,
)  # fmt: skip
_KINDS = st.sampled_from(
    ["run-started", "phase", "output", "meter", "attempt-ended", "judged", "warning", "run-ended", "x"]
)


@given(st.lists(st.tuples(_KINDS, st.sampled_from([None, "a"]), st.dictionaries(
    st.sampled_from(["candidates", "artifacts", "gates", "scores", "phase", "text", "repeat", "state"]), _VALUES
)), max_size=6))  # fmt: skip
def test_a_log_that_was_written_by_hand_does_no_harm(lines: list[tuple[str, str | None, dict[str, Any]]]) -> None:
    found = Hub()
    tail = Tail(Path("nowhere"), found.add)
    tail.take(start_event("a").to_line().encode() + b"\n")
    for kind, candidate, data in lines:
        tail.take(ForgeEvent(kind, 1.0, candidate, 1, data).to_line().encode() + b"\n")
    tail.take(ForgeEvent("warning", 1.0, data={"text": "still here"}).to_line().encode() + b"\n")
    assert found.warnings[-1] == "still here"
    json.loads(found.snapshot(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_the_round_that_began_last_is_shown() -> None:
    found = Hub()
    found.add(start_event("a", repeat=3))
    for kind, number in (("create", 1), ("run", 1), ("create", 2), ("place", 2)):
        found.add(ForgeEvent("phase", 1.0, "a", number, {"phase": kind}))
    found.add(say("a", "one\n"))
    found.add(say("a", "two\n", number=2))
    assert (found.lanes["a"].phase, found.lanes["a"].round) == ("run", 1)
    assert list(found.lanes["a"].log) == [("stdout", "one\n")]
    found.add(ForgeEvent("phase", 1.0, "a", 2, {"phase": "run"}))
    assert list(found.lanes["a"].log) == []
    found.add(ForgeEvent("attempt-ended", 1.0, "a", 1, {"round": 1, "outcome": "ok", "artifacts": []}))
    assert found.lanes["a"].phase == "run"


def test_numbers_that_json_has_not_are_none() -> None:
    found = Hub()
    found.add(start_event("a"))
    found.add(
        ForgeEvent(
            "judged", 1.0, "a", None, {"rank": 1, "total": float("nan"), "scores": {"s": {"points": float("inf")}}}
        )
    )
    (message,) = found.since(1) or ()
    assert json.loads(message.text)["data"]["total"] is None
    assert json.loads(found.snapshot())["lanes"][0]["standing"]["scores"] == {"s": None}
