"""Each weak point of the system these classes are known from, by its number in our record, mended."""

import asyncio
import concurrent.futures
import logging
import threading
import tomllib

import pytest

from corral import BackendError, BackendUnavailableError, Sandbox, SandboxGoneError, get_backend
from corral.adapters.pydantic_ai import AsyncCorralSandbox, AsyncDaytonaSandbox, CorralSandbox, DaytonaSandbox
from corral.client.sandbox import AsyncSandbox
from corral.spec import Spec
from support.project import ROOT

pytestmark = pytest.mark.needs_userns


def test_weak_point_1_the_extra_brings_what_is_imported() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert any(requirement.startswith("daytona>") for requirement in extras["daytona"])
    assert any(requirement.startswith("pydantic-ai-slim>") for requirement in extras["pydantic-ai"])


@pytest.mark.parametrize("name", ["plain", "two  spaces", "quo'te", 'dou"ble', "new\nline", "-dash", "co:lon", "ünï"])
def test_weak_point_2_ls_of_any_name(holder: CorralSandbox, name: str) -> None:
    folder = f"my work/{name}"
    holder.write(f"{folder}/{name}", "x")
    (entry,) = holder.ls_info(folder)
    assert (entry["name"], entry["path"]) == (name, f"{holder.work_dir}/{folder}/{name}")


def test_weak_point_2_ls_shows_a_link_by_its_name(sandbox: CorralSandbox) -> None:
    sandbox.execute("mkdir real; ln -s real lnk; ln -s nowhere broken; ln -s loop loop")
    shown = {entry["name"]: entry["is_dir"] for entry in sandbox.ls_info(".")}
    assert shown["lnk"] is True
    assert shown["broken"] is False
    assert shown["loop"] is False


@pytest.mark.parametrize(
    "pattern", ["don't", "-v", "--help", 'say "x"', "\\$HOME", "`id`", "a\\.b", "print(", "[", "*"]
)
def test_weak_point_3_grep_pattern_with_quote(holder: CorralSandbox, pattern: str) -> None:
    text = pattern.replace("\\", "")
    holder.write("a.txt", f"other\n{text}\n")
    found = holder.grep_raw(pattern)
    assert isinstance(found, list)
    assert (f"{holder.work_dir}/a.txt", 2, text) in [(m["path"], m["line_number"], m["line"]) for m in found]
    if pattern.startswith("-"):
        assert len(found) == 1


@pytest.mark.parametrize("where", ["pattern", "glob"])
def test_weak_point_3_grep_runs_no_command(sandbox: CorralSandbox, where: str) -> None:
    sandbox.write("a.txt", "x\n")
    evil = "x' /dev/null; touch /home/daytona/pwned; echo PWNED:1:yes; echo '"
    found = sandbox.grep_raw(evil) if where == "pattern" else sandbox.grep_raw("x", glob=evil)
    assert found == []
    assert not sandbox.exists("pwned")


def test_weak_point_3_grep_of_a_single_file_and_of_names_with_colons(holder: CorralSandbox) -> None:
    holder.write("a:7:b.txt", "hit: one\n")
    expected = [{"path": f"{holder.work_dir}/a:7:b.txt", "line_number": 1, "line": "hit: one"}]
    assert holder.grep_raw("hit", "a:7:b.txt") == expected
    assert holder.grep_raw("hit") == expected
    assert holder.grep_raw("hit", glob="*.{md,txt}") == expected


def test_weak_point_3_grep_leaves_hidden_files_out_unless_asked(holder: CorralSandbox) -> None:
    holder.write(".hidden", "hit\n")
    assert holder.grep_raw("hit") == []
    assert len(holder.grep_raw("hit", ignore_hidden=False)) == 1


def test_weak_point_3_grep_that_can_not_be_done_says_so(sandbox: CorralSandbox) -> None:
    answer = sandbox.grep_raw("x", "/no/such/folder")
    assert isinstance(answer, str)
    assert answer.startswith("Error: ")


@pytest.mark.parametrize(
    "content", [b"\x89PNG\r\n\x00\xff", b"", b"no newline", "é\r\n", "x" * 300_000, "y" * 5_000_000]
)
@pytest.mark.parametrize("path", ["plain.bin", "sp ace/a  b.bin", "quo'te/$(touch x).bin"])
def test_weak_point_4_write_is_byte_for_byte(holder: CorralSandbox, content: str | bytes, path: str) -> None:
    assert holder.write(path, content).error is None
    assert holder.read_bytes(path) == (content.encode() if isinstance(content, str) else content)
    assert sorted(entry["name"] for entry in holder.ls_info(".")) == [path.partition("/")[0]]


def test_weak_point_5_read_bytes_is_whole_and_an_edit_keeps_the_rest(sandbox: CorralSandbox) -> None:
    content = bytes(range(256)) * 1200 + b"marker"
    sandbox.write("big.bin", content)
    assert sandbox.read_bytes("big.bin") == content
    assert sandbox.edit("big.bin", "marker", "MARKER").occurrences == 1
    assert sandbox.read_bytes("big.bin") == content.replace(b"marker", b"MARKER")


def test_weak_point_6_read_bytes_of_a_missing_file_is_bytes(holder: CorralSandbox) -> None:
    assert holder.read_bytes("missing") == b""
    assert isinstance(holder.last_error, FileNotFoundError)


@pytest.mark.parametrize("work_dir", ["/home/daytona", "/home/daytona/deep/project", "/tmp/other place"])
def test_weak_point_7_relative_paths_are_the_commands_own(work_dir: str) -> None:
    with CorralSandbox(work_dir=work_dir) as sandbox:
        sandbox.write("rel.txt", "hello\n")
        assert sandbox.execute("cat rel.txt; pwd").output == f"hello\n{work_dir}\n"
        sandbox.execute("echo made > made.txt")
        assert sandbox.read("made.txt") == "     1\tmade"
        assert [info["path"] for info in sandbox.glob_info("*.txt")] == [f"{work_dir}/made.txt", f"{work_dir}/rel.txt"]


def test_weak_point_8_edits_at_the_same_time_lose_nothing(sandbox: CorralSandbox) -> None:
    marks = [f"<{number}>" for number in range(24)]
    sandbox.write("shared.txt", "\n".join(marks))
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        done = list(pool.map(lambda mark: sandbox.edit("shared.txt", mark, mark.upper() + "!"), marks))
    assert [result.error for result in done] == [None] * len(marks)
    assert sandbox.read_bytes("shared.txt").decode() == "\n".join(f"{mark}!" for mark in marks)


def test_weak_point_8_an_edit_keeps_bytes_that_are_not_utf_8(holder: CorralSandbox) -> None:
    holder.write("latin.txt", b"caf\xe9 one\n")
    assert holder.edit("latin.txt", "one", "two").error is None
    assert holder.read_bytes("latin.txt") == b"caf\xe9 two\n"


def test_weak_point_8_an_edit_finds_lf_text_in_a_crlf_file(holder: CorralSandbox) -> None:
    holder.write("dos.txt", b"one\r\ntwo\r\nthree\r\n")
    assert holder.edit("dos.txt", "one\ntwo", "1\n2").occurrences == 1
    assert holder.read_bytes("dos.txt") == b"1\r\n2\r\nthree\r\n"


@pytest.mark.parametrize("replace_all", [False, True])
def test_weak_point_8_an_empty_text_is_refused(holder: CorralSandbox, replace_all: bool) -> None:
    holder.write("a.txt", "abc")
    assert (holder.edit("a.txt", "", "-", replace_all).error or "").startswith("Failed to edit file: ")
    assert holder.read_bytes("a.txt") == b"abc"


def test_weak_point_9_a_gone_sandbox_is_told_apart_from_a_failed_command(
    box: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:
    known = DaytonaSandbox.over(box)
    assert not known.execute("exit 1").gone
    Sandbox.connect(box.detach()).kill()  # by somebody else
    with caplog.at_level(logging.WARNING):
        response = known.execute("echo hi")
    assert response.output.startswith("Error: ")
    assert (response.exit_code, response.truncated) == (1, False)
    assert response.gone
    assert isinstance(response.error, SandboxGoneError)
    assert known.id in caplog.text
    assert not known.exists("a.txt")
    assert isinstance(known.last_error, SandboxGoneError)
    assert (known.read_bytes("a"), known.ls_info("."), known.glob_info("*")) == (b"", [], [])
    assert known.read("a").startswith("Error: ")
    assert str(known.grep_raw("x")).startswith("Error: ")
    assert (known.write("a", "b").error or "").startswith("Failed to write file: ")
    assert (known.edit("a", "b", "c").error or "").startswith("Failed to edit file: ")


def test_weak_point_9_after_stop_the_answer_makes_sense(box: Sandbox) -> None:
    known = DaytonaSandbox.over(box)
    known.stop()
    response = known.execute("echo hi")
    assert response.output == "Error: the sandbox was stopped (make a new one)"
    assert response.gone


def test_weak_point_9_out_of_time_is_124_with_what_was_printed(sandbox: CorralSandbox) -> None:
    response = sandbox.execute("echo begun; sleep 60", timeout=2.5)
    assert response.exit_code == 124
    assert response.timed_out
    assert response.output == "begun\nError: Command timed out after 2.5 seconds"


def test_weak_point_9_a_folder_that_can_not_be_made_is_told(sandbox: CorralSandbox) -> None:
    sandbox.write("file", "x")
    assert (sandbox.write("file/below/a.txt", "x").error or "").startswith("Failed to write file: ")


def test_weak_point_10_glob_looks_in_the_working_folder_and_crosses_folders(holder: CorralSandbox) -> None:
    for path in ("a.py", "src/b.py", "src/deep/c.py", "src/d.txt"):
        holder.write(path, "x")

    def names(pattern: str, path: str = "/") -> list[str]:
        return [info["path"].removeprefix(holder.work_dir + "/") for info in holder.glob_info(pattern, path)]

    assert names("**/*.py") == ["a.py", "src/b.py", "src/deep/c.py"]
    assert names("*.py") == ["a.py", "src/b.py", "src/deep/c.py"]
    assert names("src/*.py") == ["src/b.py"]
    assert names("*.{txt,md}") == ["src/d.txt"]
    assert names("*.py", "src/deep") == ["src/deep/c.py"]
    assert names(f"{holder.work_dir}/src/*.py") == ["src/b.py"]
    assert names("*.py", "/nowhere") == []


def test_weak_point_10_glob_goes_on_past_a_folder_that_is_closed(sandbox: CorralSandbox) -> None:
    sandbox.write("open/a.py", "x")
    sandbox.write("shut/b.py", "x")
    sandbox.execute("chmod 000 shut")
    assert [info["name"] for info in sandbox.glob_info("**/*.py")] == ["a.py"]
    sandbox.execute("chmod 755 shut")


def test_weak_point_11_the_same_id_finds_the_same_sandbox() -> None:
    name = f"session/with spaces #{threading.get_ident()}"
    first = CorralSandbox(sandbox_id=name)
    try:
        assert first.id == name
        first.write("kept.txt", "here")
        first.close()  # lets go, and ends nothing
        second = CorralSandbox(sandbox_id=name)
        assert second.read_bytes("kept.txt") == b"here"
        second.stop()
        third = CorralSandbox(sandbox_id=name)
        assert third.read_bytes("kept.txt") == b""
        third.stop()
    finally:
        first.stop()


def test_weak_point_11_the_same_id_at_the_same_time_is_one_sandbox() -> None:
    name = f"together-{threading.get_ident()}"
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        sandboxes = list(pool.map(lambda _: CorralSandbox(sandbox_id=name), range(4)))
    try:
        boxes = {sandbox.async_sandbox.box.id for sandbox in sandboxes if sandbox.async_sandbox.box is not None}
        assert len(boxes) == 1
    finally:
        sandboxes[0].stop()
        for sandbox in sandboxes:
            sandbox.close()


class _Faulty:
    """A sandbox whose end fails the first time: only what `stop` needs, around a real one."""

    def __init__(self, box: AsyncSandbox) -> None:
        self._box = box
        self.attempts = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._box, name)

    async def kill(self) -> None:
        self.attempts += 1
        if self.attempts == 1:
            raise BackendError("the service is out of order")
        await self._box.kill()


async def test_weak_point_11_a_delete_that_fails_is_told_and_can_be_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    box = await get_backend("embedded").create(Spec())
    assert isinstance(box, AsyncSandbox)
    faulty = _Faulty(box)
    known = AsyncDaytonaSandbox.over(faulty)  # type: ignore[arg-type]
    with caplog.at_level(logging.WARNING):
        await known.stop()
    assert "out of order" in caplog.text
    assert isinstance(known.last_error, BackendError)
    await known.stop()
    assert faulty.attempts == 2
    assert box.closed
    await known.stop()
    assert faulty.attempts == 2


async def test_weak_point_11_nothing_is_done_by_del() -> None:
    for kind in (CorralSandbox, DaytonaSandbox, AsyncCorralSandbox, AsyncDaytonaSandbox):
        assert not hasattr(kind, "__del__")


class _Slow:
    """A maker that takes for ever, and notes that it was told to give up."""

    name = "slow"

    def __init__(self) -> None:
        self.given_up = threading.Event()

    async def create(self, spec: Spec) -> AsyncSandbox:
        try:
            await asyncio.sleep(3600)
        finally:
            self.given_up.set()
        raise AssertionError("slept for an hour")

    async def aclose(self) -> None:
        pass


class _Broken:
    """A maker that can't."""

    name = "broken"

    async def create(self, spec: Spec) -> AsyncSandbox:
        raise BackendUnavailableError("the quota is used up")

    async def aclose(self) -> None:
        pass


def test_weak_point_12_what_starts_too_late_is_undone_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = _Slow()
    monkeypatch.setattr("corral.adapters.pydantic_ai.daytona.DaytonaBackend", lambda **options: slow)
    with pytest.raises(RuntimeError, match=r"^Daytona sandbox failed to start within 0\.2 seconds$"):
        DaytonaSandbox(api_key="key", startup_timeout=0.2)
    assert slow.given_up.is_set()


def test_weak_point_12_the_real_cause_of_a_failed_start_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corral.adapters.pydantic_ai.daytona.DaytonaBackend", lambda **options: _Broken())
    with pytest.raises(BackendUnavailableError, match="the quota is used up"):
        DaytonaSandbox(api_key="key")


def test_weak_point_12_the_async_constructor_does_nothing() -> None:
    slow = _Slow()
    sandbox = AsyncCorralSandbox(backend=slow)  # type: ignore[arg-type]
    assert sandbox.box is None
    assert not slow.given_up.is_set()


async def test_weak_point_13_calls_use_no_thread_of_the_loop() -> None:
    async with AsyncCorralSandbox() as sandbox:
        await sandbox.execute("true")
        stuck = threading.Event()
        executor = concurrent.futures.ThreadPoolExecutor(1)
        asyncio.get_running_loop().set_default_executor(executor)
        blocked = executor.submit(stuck.wait)
        try:
            async with asyncio.timeout(60):  # a guard: with a thread for each call this never ends
                done = await asyncio.gather(*(sandbox.execute(f"echo {number}") for number in range(20)))
        finally:
            stuck.set()
            blocked.result()
        assert [response.output for response in done] == [f"{number}\n" for number in range(20)]


def test_weak_point_13_used_from_several_threads_and_loops(sandbox: CorralSandbox) -> None:
    async def ask(number: int) -> str:
        return (await sandbox.async_sandbox.execute(f"echo {number}")).output

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        outputs = list(pool.map(lambda number: asyncio.run(ask(number)), range(8)))
    assert outputs == [f"{number}\n" for number in range(8)]
