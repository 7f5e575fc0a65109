"""Commands that judge: what they see, what counts of what they say, and what artifacts can't do to them."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from corral.backends.embedded import EmbeddedBackend
from corral.backends.memory import MemoryBackend
from corral.backends.memory.call import Call
from corral.client.sandbox import AsyncSandbox
from corral.errors import BackendUnavailableError, JudgeError, SpecError
from corral.forge.judge import Command, CommandScore, Entry, Points, SandboxBench
from corral.forge.judge.commands import parse_points
from corral.spec import Spec
from support.forge_entries import GUARD_SECONDS, make_bench, make_entry, make_round


async def rate(score: CommandScore, entries: list[Entry], bench: Any) -> dict[str, Points]:
    found = dict(await score.rate(entries, bench))
    json.dumps(score.describe())
    return found


# What is read from the output.


@pytest.mark.parametrize(
    ("output", "points"),
    [
        ("70", 70.0), ("70.5\n", 70.5), ("chatter\n100\n \n", 100.0), ("0", 0.0), ("1e1", 10.0), ("250", 250.0),
        ('{"points": 5}', 5.0), ('{"points": 5.5, "details": {"a": 1}}', 5.5),
        ("", None), ("\n", None), ("70\nchatter", None), ("70 points", None), ("NaN", None), ("Infinity", None),
        ("1e999", None), ("true", None), ("null", None), ("[70]", None), ('"70"', None), ("{}", None),
        ('{"points": "70"}', None), ('{"points": true}', None), ("[" * 100_000, None), ("9" * 400, None),
    ],
    ids=lambda value: repr(value)[:30],
)  # fmt: skip
def test_points_are_on_the_last_line_or_nowhere(output: str, points: float | None) -> None:
    found = parse_points(output)
    assert (found.points if found else None) == points


def test_sealed_points_carry_the_word() -> None:
    assert parse_points("abc 70", seal="abc") == Points(70.0)
    assert parse_points('abc {"points": 1, "details": "x"}', seal="abc") == Points(1.0, {"details": "x"})
    for forged in ("70", "abd 70", "abc", "abc70", "abc 70\n100", "ab\ud800 70"):
        assert parse_points(forged, seal="abc") is None


# On sandboxes in memory.


async def test_command_gate_passes_with_exit_code_0_alone(tmp_path: Path) -> None:
    backend = MemoryBackend()
    backend.reply("good", exit_code=0)
    backend.reply("bad", stderr="line one\nline two\n", exit_code=3)
    bench = make_bench(backend)
    entry = make_entry(tmp_path, "a")
    assert (await Command("good").check(entry, bench)).passed
    verdict = await Command("bad").check(entry, bench)
    assert (verdict.passed, verdict.reason) == (False, "exit code 3: line two")
    assert backend.count_living() == 0


async def test_command_sees_the_artifacts_and_the_judges_own_files_outside_of_them(tmp_path: Path) -> None:
    seen: dict[str, Any] = {}

    async def look(call: Call) -> int:
        seen["cwd"] = call.cwd
        seen["argv"] = call.argv
        for name in ("artifact/artifact.md", "artifact/deep/data.bin", "artifact/judge/check.py", "judge/check.py"):
            seen[name] = await call.files.read(f"{call.cwd}/{name}")
        seen["env"] = call.env.get("MODE")
        call.out("42\n")
        return 0

    files = {"deep/data.bin": bytes(range(256)), "judge/check.py": "forged"}
    score = CommandScore(["look", "x y"], files={"check.py": "the judge's"}, env={"MODE": "strict"})
    found = await rate(
        score, [make_entry(tmp_path, "a", files=files)], make_bench(MemoryBackend(programs={"look": look}))
    )
    assert found["a"].points == 42
    assert seen["artifact/artifact.md"] == b"some text"
    assert seen["artifact/deep/data.bin"] == bytes(range(256))
    assert seen["artifact/judge/check.py"] == b"forged"
    assert seen["judge/check.py"] == b"the judge's"
    assert seen["env"] == "strict"
    assert seen["argv"][-1] == "x y"
    assert "artifact" not in seen["cwd"]


async def test_each_artifact_has_a_sandbox_of_its_own(tmp_path: Path) -> None:
    backend = MemoryBackend()

    async def taint(call: Call) -> int:
        mark = f"{call.cwd}/mark"
        there = await call.files.exists(mark)
        await call.files.write(mark, b"x")
        call.out("0" if there else "100")
        return 0

    bench = make_bench(MemoryBackend(programs={"taint": taint}), jobs=1)
    found = await rate(CommandScore("taint"), [make_entry(tmp_path, f"c{n}") for n in range(5)], bench)
    assert {points.points for points in found.values()} == {100.0}
    assert backend.count_living() == 0


@pytest.mark.parametrize(
    ("reply", "note"),
    [
        ({"exit_code": 1, "stdout": "100"}, "exit code 1: 100"),
        ({"stdout": "a\x1b[2J lot"}, "the last line of its output is not a number of points"),
    ],
)
async def test_failure_of_the_command_is_no_points_or_the_judges_failure(tmp_path: Path, reply: Any, note: str) -> None:
    backend = MemoryBackend()
    backend.reply("score", **reply)
    entry = make_entry(tmp_path, "a")
    assert (await rate(CommandScore("score"), [entry], make_bench(backend)))["a"] == Points(0.0, {"note": note})
    with pytest.raises(JudgeError) as caught:
        await rate(CommandScore("score", on_failure="error"), [entry], make_bench(backend))
    assert caught.value.candidate == "a"


async def test_command_out_of_time_is_the_artifacts_fault(tmp_path: Path) -> None:
    backend = MemoryBackend()
    backend.reply("slow", seconds=GUARD_SECONDS)
    verdict = await Command("slow", timeout=0.05).check(make_entry(tmp_path, "a"), make_bench(backend))
    assert verdict.reason.startswith("timed out")
    assert backend.count_living() == 0


async def test_sealed_command_is_told_a_word_that_output_must_carry(tmp_path: Path) -> None:
    words: list[bytes] = []

    async def honest(call: Call) -> int:
        said = b"".join([piece async for piece in call.stdin])
        words.append(said)
        call.out(f"{said.decode().strip()} 80\n")
        return 0

    async def forger(call: Call) -> int:
        call.out("100\n")
        return 0

    backend = MemoryBackend(programs={"honest": honest, "forger": forger})
    entries = [make_entry(tmp_path, "a"), make_entry(tmp_path, "b")]
    found = await rate(CommandScore("honest", sealed=True), entries, make_bench(backend))
    assert [found[name].points for name in "ab"] == [80, 80]
    assert len(set(words)) == 2, "a word for each: what one candidate learns is of no use to another"
    assert all(len(word.strip()) == 32 for word in words)
    found = await rate(CommandScore("forger", sealed=True), entries, make_bench(backend))
    assert [found[name].points for name in "ab"] == [0, 0]


async def test_command_that_is_not_there_is_the_judges_failure(tmp_path: Path) -> None:
    backend = MemoryBackend()
    backend.reply(re.compile(r"(?s).*command -v.*no-such-program"), exit_code=127)
    for command in (["no-such-program", "x"], "no-such-program x"):
        with pytest.raises(JudgeError, match="the command 'no-such-program' does not exist"):
            await Command(command).check(make_entry(tmp_path, "a"), make_bench(backend))


async def test_code_127_by_the_artifact_is_its_own(tmp_path: Path) -> None:
    """Otherwise a candidate could end the contest for all."""
    backend = MemoryBackend()
    backend.reply("echo 1", exit_code=127)
    verdict = await Command("echo 1").check(make_entry(tmp_path, "a"), make_bench(backend))
    assert verdict.reason == "exit code 127"


async def test_rounds_are_joined_and_one_without_an_artifact_has_nothing(tmp_path: Path) -> None:
    backend = MemoryBackend()
    for points in ("90", "30"):
        backend.reply("score", stdout=points, times=1)
    rounds = [make_round(tmp_path, "a", n, {"artifact.md": "x"} if n < 3 else None) for n in (1, 2, 3)]
    entry = make_entry(tmp_path, "a", rounds=rounds)
    found = await rate(CommandScore("score", over="best"), [entry], make_bench(backend, jobs=1))
    assert found["a"].points == 90
    assert sorted(found["a"].details["rounds"]) == [0, 30, 90]
    assert len(backend.calls) == 2


class Empty(MemoryBackend):
    """Makes no sandbox."""

    async def create(self, spec: Spec, **more: Any) -> Any:
        raise BackendUnavailableError("no sandboxes today")


async def test_no_sandbox_is_the_judges_failure(tmp_path: Path) -> None:
    with pytest.raises(JudgeError, match="no sandboxes today") as caught:
        await Command("score").check(make_entry(tmp_path, "a"), make_bench(Empty()))
    assert caught.value.candidate == "a"


class Mortal:
    """A bench whose sandboxes end under the first calls."""

    def __init__(self, ends: int) -> None:
        self.ends = ends
        self.opened = 0
        self.bench = make_bench(MemoryBackend(programs={"score": self._score}))

    async def _score(self, call: Call) -> int:
        call.out("60\n")
        return 0

    @property
    def timeout(self) -> float:
        return self.bench.timeout

    @asynccontextmanager
    async def open(self, files: Path | None = None) -> AsyncIterator[AsyncSandbox]:
        self.opened += 1
        async with self.bench.open(files) as box:
            if self.opened <= self.ends:
                await box.kill()
            yield box


@pytest.mark.parametrize(("ends", "points"), [(0, 60), (1, 60), (2, 0)])
async def test_sandbox_that_ends_under_the_command_is_tried_again_once(
    tmp_path: Path, ends: int, points: float
) -> None:
    bench = Mortal(ends)
    found = await rate(CommandScore("score"), [make_entry(tmp_path, "a")], bench)
    assert found["a"].points == points
    assert bench.opened == min(ends + 1, 2)
    if not points:
        assert "the sandbox failed while the command ran" in found["a"].details["note"]


def test_description_has_no_values_of_the_environment_and_no_content() -> None:
    made = CommandScore("run", env={"API_KEY": "hunter2"}, files={"key.txt": "hunter3"})
    text = json.dumps(made.describe()) + repr(made) + json.dumps(Command("x", env={"API_KEY": "hunter2"}).describe())
    assert "API_KEY" in text
    assert "key.txt" in text
    assert "hunter" not in text


@pytest.mark.parametrize(
    "wrong",
    [
        {"command": ""}, {"command": []}, {"command": ["a\0b"]}, {"command": "x", "files": {"../x": ""}},
        {"command": "x", "timeout": -1}, {"command": "x", "env": {"A=B": ""}},
    ],
    ids=str,
)  # fmt: skip
def test_commands_that_can_not_be_are_refused(wrong: dict[str, Any]) -> None:
    for kind in (Command, CommandScore):
        with pytest.raises(SpecError):
            kind(**wrong)


# The bench.


async def test_bench_has_so_many_sandboxes_at_a_time_and_ends_them(tmp_path: Path) -> None:
    backend = MemoryBackend()
    bench = SandboxBench(backend, Spec(), jobs=2)
    most = 0

    async def use() -> None:
        nonlocal most
        async with bench.open() as box:
            most = max(most, backend.count_living())
            assert await box.files.exists("artifact")
            await asyncio.sleep(0)

    await asyncio.gather(*(use() for _ in range(10)))
    assert most == 2
    assert backend.count_living() == 0


async def test_bench_ends_its_sandbox_however_it_is_left(tmp_path: Path) -> None:
    backend = MemoryBackend()
    bench = SandboxBench(backend, Spec(), jobs=1)
    with pytest.raises(RuntimeError, match="mine"):
        async with bench.open():
            raise RuntimeError("mine")
    with pytest.raises(FileNotFoundError):
        async with bench.open(tmp_path / "nothing"):
            raise AssertionError
    inside = asyncio.Event()

    async def hold() -> None:
        async with bench.open():
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.ensure_future(hold())
    async with asyncio.timeout(GUARD_SECONDS):
        await inside.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert backend.count_living() == 0
    async with bench.open():  # the seat is free again
        assert backend.count_living() == 1


async def test_bench_prepares_before_anything_of_the_candidate_is_there(tmp_path: Path) -> None:
    async def prepare(box: AsyncSandbox) -> None:
        assert not await box.files.exists("artifact")
        await box.files.write("tool", b"x")

    (tmp_path / "file").write_text("x")
    async with make_bench(prepare=prepare).open(tmp_path) as box:
        assert await box.files.read("tool") == b"x"
        assert await box.files.read("artifact/file") == b"x"


# On the real engine.

CHECK = """
import subprocess, sys
word = sys.stdin.readline().strip()
done = subprocess.run([sys.executable, "artifact/answer.py"], stdin=subprocess.DEVNULL, capture_output=True, text=True)
print(word, 100 if done.stdout.strip() == "42" else 0)
"""


@pytest.fixture
async def bench() -> AsyncIterator[SandboxBench]:
    backend = EmbeddedBackend()
    try:
        yield SandboxBench(backend, Spec(), timeout=GUARD_SECONDS)
    finally:
        await backend.aclose()


@pytest.mark.needs_userns
async def test_command_over_hostile_artifacts_on_the_engine(tmp_path: Path, bench: SandboxBench) -> None:
    entries = [
        make_entry(tmp_path, "right", files={"answer.py": "print(42)"}),
        make_entry(tmp_path, "wrong", files={"answer.py": "print(41)"}),
        # Each tries to be found instead of what the judge means.
        make_entry(tmp_path, "forger", files={
            "answer.py": "print(100, flush=True); open('judge/check.py', 'w').write('print(100)')",
            "subprocess.py": "raise SystemExit(0)", "judge/check.py": "print(100)", "python3": "#!/bin/sh\necho 100\n",
        }),
    ]  # fmt: skip
    score = CommandScore(["python3", "judge/check.py"], files={"check.py": CHECK}, sealed=True)
    found = await rate(score, entries, bench)
    assert {name: points.points for name, points in found.items()} == {"right": 100, "wrong": 0, "forger": 0}, found


@pytest.mark.needs_userns
async def test_command_gate_on_the_engine(tmp_path: Path, bench: SandboxBench) -> None:
    gate = Command("python3 -m json.tool artifact/artifact.md > /dev/null")
    assert (await gate.check(make_entry(tmp_path, "a", '{"a": 1}'), bench)).passed
    verdict = await gate.check(make_entry(tmp_path, "b", "no json"), bench)
    assert verdict.reason.startswith("exit code 1: ")
    with pytest.raises(JudgeError, match="the command 'jaq' does not exist"):
        await Command("jaq . artifact/artifact.md").check(make_entry(tmp_path, "c"), bench)
