"""Gates: what passes, what does not, and why; also on hostile artifacts."""

import asyncio
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from corral.errors import BackendUnavailableError, JudgeError, SpecError
from corral.forge.artifacts import open_artifact, read_artifact
from corral.forge.judge import (
    ArtifactPresent,
    Entry,
    ExitCode,
    Gate,
    GateVerdict,
    PythonGate,
    Regex,
    Schema,
    Size,
    Work,
)
from corral.forge.judge.apart import OutOfBoundsError, look_apart
from corral.forge.outcome import Refused
from support.forge_entries import GUARD_SECONDS, make_bench, make_entry, make_round
from support.leftovers import list_children

EVIL = "a" * 60 + "!"
"""For `(a+)+$`, which then takes longer than there are seconds in the history of the world."""


async def check(gate: Gate, entry: Entry) -> GateVerdict:
    verdict = await gate.check(entry, make_bench())
    assert verdict.passed or verdict.reason
    json.dumps(gate.describe())
    return verdict


# Exit code, artifact, size.


async def test_exit_code(tmp_path: Path) -> None:
    entry = make_entry(tmp_path, "a", exit_code=3, outcome="crashed")
    assert (await check(ExitCode(), entry)) == GateVerdict("exit-code", passed=False, reason="exit code 3")
    assert (await check(ExitCode(codes=(0, 3)), entry)).passed


@pytest.mark.parametrize("outcome", ["timeout", "oom"])
async def test_no_code_excuses_a_timeout_or_a_kill(tmp_path: Path, outcome: str) -> None:
    entry = make_entry(tmp_path, "a", exit_code=124, outcome=outcome, reason="more than 60 s")
    assert (await check(ExitCode(codes=(0, 124, 137)), entry)).reason == "more than 60 s"


async def test_artifact_present(tmp_path: Path) -> None:
    assert (await check(ArtifactPresent(), make_entry(tmp_path, "a"))).passed
    gate = ArtifactPresent(also=("plot.png",))
    assert (await check(gate, make_entry(tmp_path, "b"))).reason == "no plot.png"
    assert (await check(gate, make_entry(tmp_path, "c", files={"plot.png": b"\x89PNG"}))).passed
    refused = (Refused("artifact.md", "a link (to /etc/passwd)"),)
    entry = make_entry(tmp_path, "d", None, refused=refused)
    for gate in (ArtifactPresent(), Size(), PythonGate(lambda work: True), Regex("x")):
        assert (await check(gate, entry)).reason == "artifact.md was not taken: a link (to /etc/passwd)"


@pytest.mark.parametrize(
    ("gate", "size", "passes"),
    [
        (Size(), 0, False), (Size(), 1, True), (Size(min=0), 0, True), (Size(max=10), 10, True),
        (Size(max=10), 11, False), (Size(min="1KiB"), 1023, False), (Size(min="1KiB"), 1024, True),
    ],
    ids=str,
)  # fmt: skip
async def test_size_includes_both_ends(tmp_path: Path, gate: Size, size: int, passes: bool) -> None:
    assert (await check(gate, make_entry(tmp_path, "a", b"\xff" * size))).passed == passes


async def test_size_in_characters_does_not_count_white_space_around(tmp_path: Path) -> None:
    gate = Size(min_characters=4)
    assert (await check(gate, make_entry(tmp_path, "a", "äöüß"))).passed
    assert (await check(gate, make_entry(tmp_path, "b", " abc \n" * 1 + " " * 100))).reason == (
        "artifact.md has 3 characters, less than 4"
    )
    assert (await check(gate, make_entry(tmp_path, "c", None))).reason == "no artifact.md"


def test_sizes_that_nothing_has_are_refused() -> None:
    with pytest.raises(SpecError, match="nothing would pass"):
        Size(min=2, max=1)


@pytest.mark.parametrize(
    ("rounds", "good", "passes"),
    [("all", 3, True), ("all", 2, False), ("most", 2, True), ("most", 1, False), ("any", 1, True), ("any", 0, False)],
)
async def test_rounds_that_must_pass(tmp_path: Path, rounds: Any, good: int, passes: bool) -> None:
    attempts = [make_round(tmp_path, "a", n, {"artifact.md": "x"} if n <= good else None) for n in (1, 2, 3)]
    verdict = await check(ArtifactPresent(rounds=rounds), make_entry(tmp_path, "a", rounds=attempts))
    assert verdict.passed == passes
    assert verdict.reason == ["no artifact.md", "round 2, 3: no artifact.md", "round 3: no artifact.md", ""][good]


def test_unknown_rounds_are_refused() -> None:
    with pytest.raises(SpecError, match="all, most or any"):
        ExitCode(rounds="some")  # type: ignore[arg-type]


# A function as gate.


async def test_function_says_yes_no_or_why(tmp_path: Path) -> None:
    entry = make_entry(tmp_path, "a", "hello")
    assert (await check(PythonGate(lambda work: work.read_text() == "hello"), entry)).passed
    assert (await check(PythonGate(lambda _: ""), entry)).passed
    assert (await check(PythonGate(lambda _: False, label="no"), entry)) == GateVerdict("no", False, "not passed")

    async def too_short(work: Work) -> str:
        await asyncio.sleep(0)
        return f"{len(work.read_bytes())} bytes"

    verdict = await check(PythonGate(too_short), entry)
    assert (verdict.gate, verdict.reason) == ("too_short", "5 bytes")
    described = PythonGate(too_short).describe()
    assert described["function"].endswith("too_short")
    assert re.fullmatch(r"[0-9a-f]{64}", described["sha256"])


async def test_function_is_not_asked_about_nothing(tmp_path: Path) -> None:
    """One that reads the artifact would raise, and a candidate that made nothing would end the contest for all."""
    verdict = await check(PythonGate(lambda work: bool(work.read_text())), make_entry(tmp_path, "a", None))
    assert verdict.reason == "no artifact.md"


@pytest.mark.parametrize("said", [None, 0, 1.5, object()])
async def test_function_that_says_nothing_has_failed(tmp_path: Path, said: object) -> None:
    with pytest.raises(JudgeError, match="it returned"):
        await PythonGate(lambda _: said).check(make_entry(tmp_path, "a"), make_bench())


async def test_function_that_hangs_is_not_waited_for(tmp_path: Path) -> None:
    async def hang(work: Work) -> bool:
        await asyncio.Event().wait()
        return True

    with pytest.raises(JudgeError, match=r"hang took more than 0\.01 s"):
        await PythonGate(hang).check(make_entry(tmp_path, "a"), make_bench(timeout=0.01))


async def test_timeout_error_of_the_function_is_its_own(tmp_path: Path) -> None:
    def fail(work: Work) -> bool:
        raise TimeoutError("of a service that it asked")

    with pytest.raises(TimeoutError, match="of a service"):
        await PythonGate(fail).check(make_entry(tmp_path, "a"), make_bench())


# Regular expressions.


async def test_patterns_that_must_and_must_not_be_there(tmp_path: Path) -> None:
    gate = Regex([r"(?m)^# ", re.compile("title", re.IGNORECASE)], must_not="TODO|lorem")
    assert (await check(gate, make_entry(tmp_path, "a", "text\n# TITLE\n"))).passed
    verdict = await check(gate, make_entry(tmp_path, "b", "title: TODO"))
    assert verdict.reason == "nothing matches '(?m)^# ', something matches 'TODO|lorem'"


async def test_any_bytes_can_be_searched(tmp_path: Path) -> None:
    assert (await check(Regex("end"), make_entry(tmp_path, "a", bytes(range(256)) * 100 + b"end"))).passed


async def test_text_that_would_be_searched_for_ever_does_not_pass(tmp_path: Path) -> None:
    entry = make_entry(tmp_path, "a", EVIL)
    before = set(list_children(os.getpid()))
    # Both ways round: who makes it undecidable must not profit from it.
    for gate in (Regex(r"(a+)+$", timeout=0.3), Regex(must_not=r"(a+)+$", timeout=0.3)):
        verdict = await check(gate, entry)
        assert not verdict.passed
        assert verdict.reason == "could not be decided: it took more than 0.3 s"
    assert set(list_children(os.getpid())) <= before


async def test_cancelled_search_is_killed(tmp_path: Path) -> None:
    before = set(list_children(os.getpid()))
    task = asyncio.ensure_future(check(Regex(r"(a+)+$", timeout=60), make_entry(tmp_path, "a", EVIL)))
    for _ in range(6000):
        if set(list_children(os.getpid())) - before:
            break
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert set(list_children(os.getpid())) <= before


async def test_text_that_is_too_long_to_look_at_does_not_pass(tmp_path: Path) -> None:
    gate = Regex(must_not="secret", max_bytes=100)
    assert (await check(gate, make_entry(tmp_path, "a", "x" * 100))).passed
    verdict = await check(gate, make_entry(tmp_path, "b", "x" * 101 + "secret"))
    assert verdict.reason == "artifact.md has more than 100 bytes"


async def test_another_file_than_the_artifact(tmp_path: Path) -> None:
    gate = Regex("x", file="notes/more.txt")
    assert (await check(gate, make_entry(tmp_path, "a", files={"notes/more.txt": "x"}))).passed
    assert (await check(gate, make_entry(tmp_path, "b"))).reason == "no notes/more.txt"


@pytest.mark.parametrize("wrong", [{}, {"must": "("}, {"must": b"bytes"}, {"must": "x", "timeout": 0}], ids=str)
def test_patterns_that_are_none_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(SpecError):
        Regex(**wrong)


async def test_worker_that_fails_is_the_judges_failure() -> None:
    with pytest.raises(JudgeError, match="KeyError"):
        await look_apart({"task": "no such task"}, b"", timeout=10)


async def test_worker_has_no_more_memory_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corral.forge.judge.apart._MEMORY_BYTES", 200 * 2**20)
    # Each letter of such text takes four bytes once it is decoded.
    data = "\U0001f600".encode() + b"x" * (50 * 2**20)
    with pytest.raises(OutOfBoundsError, match="too much memory"):
        await look_apart({"task": "regex", "patterns": []}, data, timeout=60)


# Schemas.

PERSON = {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}, "age": {"minimum": 0}}}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"name": "x", "age": 3}', None),
        ("{}", '/: "name" is a required property'),
        ('{"name": 1, "age": -1}', "/name: "),
        ("{", "not JSON"),
        ("", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        ('{"name": NaN}', "not JSON: NaN"),
        ("[" * 100_000, "not JSON"),
        ("9" * 10_000, "not JSON"),
        ('{"name": ' + "[" * 500 + "]" * 500 + "}", "can't be checked"),
    ],
    ids=lambda value: repr(value)[:20],
)
async def test_schema(tmp_path: Path, text: str | bytes, reason: str | None) -> None:
    verdict = await check(Schema(PERSON), make_entry(tmp_path, "a", text))
    assert verdict.passed == (reason is None)
    assert (reason or "") in verdict.reason


async def test_schema_tells_the_first_problems_only(tmp_path: Path) -> None:
    gate = Schema({"items": {"type": "string"}})
    verdict = await check(gate, make_entry(tmp_path, "a", json.dumps(list(range(10_000)))))
    assert not verdict.passed
    assert len(verdict.reason) < 3000


async def test_pattern_in_a_schema_is_not_searched_for_ever(tmp_path: Path) -> None:
    verdict = await check(Schema({"pattern": r"^(a+)+$"}, timeout=5), make_entry(tmp_path, "a", json.dumps(EVIL)))
    assert not verdict.passed


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "nope"},
        {"$ref": "https://example.org/schema.json"},
        {"$ref": "file:///etc/passwd"},
        {"minimum": object()},
    ],
    ids=["type", "web", "file", "object"],
)
def test_schemas_that_are_none_and_such_that_fetch_are_refused(schema: Any) -> None:
    with pytest.raises(SpecError, match="not a JSON Schema"):
        Schema(schema)


async def test_schema_fetches_nothing_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text('{"type": "string"}')
    schema = {"$ref": (tmp_path / "other.json").as_uri()}
    with pytest.raises(SpecError, match="may not fetch"):
        Schema(schema)
    with pytest.raises(JudgeError):
        await look_apart({"task": "schema", "schema": schema}, b'"text"', timeout=GUARD_SECONDS)


def test_schema_without_the_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "jsonschema_rs", None)
    with pytest.raises(BackendUnavailableError, match=r"corral\[forge\]"):
        Schema(PERSON)


# Reading what lies there.


def test_only_regular_files_below_the_folder_are_opened(tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("secret")
    folder = tmp_path / "folder"
    (folder / "real").mkdir(parents=True)
    (folder / "real" / "file").write_text("content")
    (folder / "link").symlink_to(tmp_path / "outside")
    (folder / "inner").symlink_to("real")
    os.mkfifo(folder / "fifo")
    assert read_artifact(folder, "real/file") == (b"content", True)
    outside = ("../outside", "real/../../outside", str(tmp_path / "outside"))
    for name in ("link", "inner/file", "fifo", "real", *outside, "", ".", "real//file", "a\0b", "nothing"):
        with pytest.raises(OSError):  # noqa: PT011 - which one is the kernel's choice
            open_artifact(folder, name)


def test_reading_is_bounded_and_leaves_nothing_open(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(b"x" * 1000)
    before = len(list(Path("/proc/self/fd").iterdir()))
    assert read_artifact(tmp_path, "big", max_bytes=999) == (b"x" * 999, False)
    assert read_artifact(tmp_path, "big", max_bytes=1000) == (b"x" * 1000, True)
    for _ in range(50):
        with pytest.raises(OSError):  # noqa: PT011
            open_artifact(tmp_path, "a/b/c")
    assert len(list(Path("/proc/self/fd").iterdir())) < before + 40  # other threads open and close some, too


async def test_artifact_that_became_a_link_is_not_followed(tmp_path: Path) -> None:
    """The contest takes out regular files only. Should a folder have been changed since, a judge reads no other."""
    entry = make_entry(tmp_path, "a", "text")
    path = tmp_path / "a" / "1" / "artifact.md"
    path.unlink()
    path.symlink_to("/etc/passwd")
    assert (await check(Regex("root"), entry)).reason == "no artifact.md"
    with pytest.raises(OSError):  # noqa: PT011
        entry.read_text(entry.attempts[0])
