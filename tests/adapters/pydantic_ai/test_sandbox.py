"""The recorded behaviour of the sandbox classes, row by row."""

import gc
import inspect
import subprocess
import sys
import threading

import pytest

from corral import Sandbox, SandboxGoneError
from corral.adapters.pydantic_ai import (
    AsyncBackgroundSandboxProtocol,
    AsyncCorralSandbox,
    BackgroundSandboxProtocol,
    CorralSandbox,
    DaytonaSandbox,
    EditResult,
    ExecuteResponse,
    SandboxProtocol,
    WriteResult,
    apply_hashline_edit,
    apply_hashline_edit_with_summary,
    format_hashline_output,
    line_hash,
)
from support.user import OrdinaryUser

pytestmark = pytest.mark.needs_userns


def test_the_signature_of_daytona_sandbox_is_the_known_one() -> None:
    parameters = inspect.signature(DaytonaSandbox).parameters.values()
    known = {p.name: p.default for p in parameters if p.kind is not inspect.Parameter.KEYWORD_ONLY}
    assert known == {"api_key": None, "sandbox_id": None, "work_dir": "/home/daytona", "startup_timeout": 180}
    assert list(known) == ["api_key", "sandbox_id", "work_dir", "startup_timeout"]


def test_daytona_sandbox_without_a_key_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DAYTONA_API_KEY", raising=False)
    with pytest.raises(ValueError, match=r"^Daytona API key is required\. Pass api_key= or set DAYTONA_API_KEY\.$"):
        DaytonaSandbox()


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("echo out; echo err >&2", ExecuteResponse("out\nerr\n", 0, False)),
        ("exit 7", ExecuteResponse("", 7, False)),
        ("pwd", ExecuteResponse("/home/daytona\n", 0, False)),
        ("no-such-program-here 2>/dev/null", ExecuteResponse("", 127, False)),
        ("kill -9 $$", ExecuteResponse("", 137, False)),
        ("read x || echo eof", ExecuteResponse("eof\n", 0, False)),
    ],
)
def test_execute(sandbox: CorralSandbox, command: str, expected: ExecuteResponse) -> None:
    assert sandbox.execute(command) == expected


def test_execute_has_more_to_tell_than_the_known_fields(sandbox: CorralSandbox) -> None:
    response = sandbox.execute("echo out; echo err >&2; exit 3")
    assert (response.stdout, response.stderr, response.reason) == ("out\n", "err\n", "exited")
    assert response.duration_seconds > 0
    assert not response.timed_out
    assert response.error is None


def test_output_beyond_a_hundred_thousand_characters_is_cut(sandbox: CorralSandbox) -> None:
    response = sandbox.execute("yes é | head -c 3000000")
    assert response.truncated
    assert len(response.output) == 100_000
    assert response.output.startswith("é\né\n")


def test_the_timeout_of_the_spec_holds_where_the_call_names_none() -> None:
    with CorralSandbox(exec_timeout=0.5) as sandbox:
        assert sandbox.execute("sleep 60").output == "Error: Command timed out after 0.5 seconds"


def test_read_numbers_lines(sandbox: CorralSandbox) -> None:
    sandbox.write("a.txt", "one\ntwo\nthree\n")
    assert sandbox.read("a.txt") == "     1\tone\n     2\ttwo\n     3\tthree"
    assert sandbox.read("a.txt", offset=1, limit=1).startswith("     2\ttwo\n\n")
    assert sandbox.read("a.txt", offset=9) == "Error: Offset 9 exceeds file length (3 lines)"
    assert sandbox.read("nowhere.txt") == "Error: File 'nowhere.txt' not found"
    assert sandbox.read("/home").startswith("Error: ")


def test_read_says_what_is_left(box: Sandbox) -> None:
    box.files.write("a.txt", "1\n2\n3\n4")
    general, known = CorralSandbox.over(box), DaytonaSandbox.over(box)
    assert general.read("a.txt", limit=2).endswith("\n\n[... 2 more lines. Use offset=2 to read more.]")
    assert known.read("a.txt", limit=2).endswith("\n\n... (output truncated)")


def test_read_keeps_little_of_a_long_line(sandbox: CorralSandbox) -> None:
    assert sandbox.execute("head -c 5000000 /dev/zero | tr '\\0' x > long.txt; echo >> long.txt; echo end >> long.txt")
    text = sandbox.read("long.txt")
    assert len(text) < 20_000
    assert "     2\tend" in text
    assert text.endswith("\n\n... (output truncated)")


def test_read_of_something_that_is_no_text_says_so(sandbox: CorralSandbox) -> None:
    sandbox.write("a.bin", b"\x7fELF\0\0")
    assert sandbox.read("a.bin") == "Error: File 'a.bin' is not a text"
    sandbox.write("latin.txt", b"caf\xe9")
    assert sandbox.read("latin.txt") == "     1\tcaf\ufffd"
    sandbox.write("empty.txt", b"")
    assert sandbox.read("empty.txt") == ""


@pytest.mark.parametrize("replace_all", [False, True])
def test_edit(sandbox: CorralSandbox, replace_all: bool) -> None:
    sandbox.write("a.txt", "one two one")
    assert sandbox.edit("a.txt", "two", "2", replace_all) == EditResult(path="a.txt", occurrences=1)
    several = sandbox.edit("a.txt", "one", "1", replace_all)
    if replace_all:
        assert several == EditResult(path="a.txt", occurrences=2)
    else:
        assert several.error == ("String found 2 times. Use replace_all=True to replace all, or provide more context.")
    assert sandbox.edit("a.txt", "nine", "9", replace_all).error == "String not found in file"
    assert sandbox.edit("none.txt", "a", "b", replace_all).error == "File not found: none.txt"


def test_write_answers_with_the_path_or_the_reason(sandbox: CorralSandbox) -> None:
    assert sandbox.write("new/folder/a.txt", "x") == WriteResult(path="new/folder/a.txt")
    refused = sandbox.write("/home", "x")
    assert refused.path is None
    assert (refused.error or "").startswith("Failed to write file: ")


def test_exists_is_about_files(holder: CorralSandbox) -> None:
    holder.write("folder/a.txt", "x")
    assert holder.exists("folder/a.txt")
    assert not holder.exists("folder")
    assert not holder.exists("folder/b.txt")
    assert not holder.exists("folder/a.txt/c")


def test_ls_info_has_folders_first(holder: CorralSandbox) -> None:
    for path in ("dir/b.txt", "dir/a.txt", "dir/z/c.txt"):
        holder.write(path, "12345")
    entries = holder.ls_info("dir")
    assert [(entry["name"], entry["is_dir"], entry["size"]) for entry in entries] == [
        ("z", True, None),
        ("a.txt", False, 5),
        ("b.txt", False, 5),
    ]
    assert entries[1]["path"] == f"{holder.work_dir}/dir/a.txt"
    assert holder.ls_info("nowhere") == []


def test_stop_is_for_good_and_may_be_repeated() -> None:
    sandbox = CorralSandbox()
    assert sandbox.is_alive()
    sandbox.stop()
    sandbox.stop()
    assert not sandbox.is_alive()


def test_touch_moves_the_last_activity(sandbox: CorralSandbox) -> None:
    before = sandbox.last_activity
    sandbox.touch()
    assert sandbox.last_activity >= before


async def test_the_async_class_makes_one_sandbox_however_many_ask() -> None:
    async with AsyncCorralSandbox() as sandbox:
        assert sandbox.box is not None
        first = sandbox.id
        assert (await sandbox.execute("echo hi")).output == "hi\n"
        assert sandbox.id == first


async def test_the_async_class_makes_nothing_before_it_is_used() -> None:
    sandbox = AsyncCorralSandbox()
    assert sandbox.id == ""
    assert not await sandbox.is_alive()
    assert sandbox.box is None
    await sandbox.stop()
    assert sandbox.box is None


def test_a_forgotten_sandbox_is_ended() -> None:
    sandbox = CorralSandbox()
    box = sandbox.async_sandbox.box
    assert box is not None
    del sandbox
    gc.collect()
    ended = threading.Event()
    for _ in range(600):
        if box.closed:
            break
        ended.wait(0.05)
    assert box.closed


def test_a_borrowed_sandbox_is_not_ended(box: Sandbox) -> None:
    CorralSandbox.over(box)
    gc.collect()
    assert box.exec("echo still").stdout == "still\n"


def test_the_classes_need_no_pydantic_ai_and_the_rest_says_what_to_install() -> None:
    script = """
import sys
sys.modules["pydantic_ai"] = None
from corral.adapters.pydantic_ai import CorralSandbox, DaytonaSandbox, ExecuteResponse
try:
    from corral.adapters.pydantic_ai import CorralToolset
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "pip install 'corral[pydantic-ai]'" in done.stdout


def test_a_gone_sandbox_raises_in_the_general_class() -> None:
    with Sandbox() as box:
        sandbox = CorralSandbox.over(box)
        Sandbox.connect(box.detach()).kill()  # through another handle
        for call in (
            lambda: sandbox.execute("echo hi"),
            lambda: sandbox.read("a"),
            lambda: sandbox.exists("a"),
            lambda: sandbox.read_bytes("a"),
            lambda: sandbox.write("a", "b"),
            lambda: sandbox.edit("a", "b", "c"),
            lambda: sandbox.ls_info("."),
            lambda: sandbox.glob_info("*"),
            lambda: sandbox.grep_raw("x"),
        ):
            with pytest.raises(SandboxGoneError):
                call()
        assert not sandbox.is_alive()


@pytest.mark.needs_user
def test_it_works_for_an_ordinary_user_without_pydantic_ai(ordinary_user: OrdinaryUser) -> None:
    done = ordinary_user.run("""
from corral.adapters.pydantic_ai import CorralSandbox

with CorralSandbox() as sandbox:
    sandbox.write("a b.txt", "hello")
    print(sandbox.execute("cat 'a b.txt'").output, sandbox.read("a b.txt"), sandbox.edit("a b.txt", "hello", "bye"))
    print(sandbox.grep_raw("bye"))

named = CorralSandbox(sandbox_id="again")
named.write("kept", "x")
named.close()
again = CorralSandbox(sandbox_id="again")
print(again.read_bytes("kept"))
again.stop()
""")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("hello      1\thello EditResult(")
    assert done.stdout.endswith("'line': 'bye'}]\nb'x'\n")


def test_the_known_protocols_are_kept() -> None:
    with Sandbox(backend="memory") as box:
        plain, awaited = CorralSandbox.over(box), AsyncCorralSandbox.over(box)
        assert isinstance(plain, BackgroundSandboxProtocol)
        assert isinstance(plain, SandboxProtocol)
        assert isinstance(awaited, AsyncBackgroundSandboxProtocol)
    for protocol, kind in (
        (BackgroundSandboxProtocol, CorralSandbox),
        (AsyncBackgroundSandboxProtocol, AsyncCorralSandbox),
    ):
        for name in dir(protocol):
            if name.startswith("_") or name == "id":
                continue
            known = inspect.signature(getattr(protocol, name)).parameters
            ours = inspect.signature(getattr(kind, name)).parameters
            assert list(ours)[: len(known)] == list(known), name
            assert [ours[each].default for each in known] == [known[each].default for each in known], name
            added = list(ours.values())[len(known) :]
            assert all(parameter.kind is inspect.Parameter.KEYWORD_ONLY for parameter in added), name


def test_the_known_functions_for_lines_and_hashes() -> None:
    assert format_hashline_output("a\nb\nc\n", limit=2) == "1:0c|a\n2:92|b\n\n... (1 more lines)"
    assert line_hash("a") == "0c"
    assert apply_hashline_edit("a\nb\n", 1, "0c", "A") == ("A\nb\n", None)
    done = apply_hashline_edit_with_summary("a\nb\n", 1, "0c", "x\ny", insert_after=True)
    assert done == ("a\nx\ny\nb\n", None, "Inserted 2 line(s) after line 1")
