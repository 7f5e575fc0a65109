"""A real agent with a scripted model: what the model is shown, and how its calls are carried out."""

import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic_ai import Agent, BinaryContent, DeferredToolRequests, DeferredToolResults
from pydantic_ai.exceptions import UnexpectedModelBehavior, UserError
from pydantic_ai.messages import RetryPromptPart

from adapters.pydantic_ai.scripted import Call, Script, run
from corral import Sandbox, SandboxGoneError
from corral.adapters.pydantic_ai import (
    AsyncCorralSandbox,
    CorralSandbox,
    CorralToolset,
    CorralWorkspace,
    CorralWorkspaces,
    DaytonaSandbox,
    create_console_toolset,
)

pytestmark = pytest.mark.needs_userns


@dataclass
class Deps:
    """As users of the known toolset write them."""

    backend: Any


async def test_the_texts_that_a_model_sees(box: Sandbox) -> None:
    shown = await run(
        CorralToolset(box),
        ("ls", {"path": "box"}),
        ("write_file", {"path": "box/a.py", "content": "one\ntwo\n"}),
        ("write_file", {"path": "box/b/c.txt", "content": ""}),
        ("ls", {"path": "box"}),
        ("read_file", {"path": "box/a.py"}),
        ("edit_file", {"path": "box/a.py", "old_string": "two", "new_string": "2"}),
        ("glob", {"pattern": "**/*.py", "path": "box"}),
        ("glob", {"pattern": "*.zip", "path": "box"}),
        ("grep", {"pattern": "one"}),
        ("grep", {"pattern": "one", "output_mode": "content"}),
        ("grep", {"pattern": "one", "output_mode": "count"}),
        ("grep", {"pattern": "nothing"}),
        ("execute", {"command": "cat box/a.py"}),
        ("execute", {"command": "echo oh; exit 3"}),
    )
    home = "/home/daytona"
    assert shown == [
        "Directory 'box' is empty or does not exist",
        "Wrote 2 lines to box/a.py",
        "Wrote 0 lines to box/b/c.txt",
        "Contents of box:\n  b/\n  a.py (8 bytes)",
        "     1\tone\n     2\ttwo",
        "Edited box/a.py: replaced 1 occurrence(s)",
        f"Found 1 file(s) matching '**/*.py':\n  {home}/box/a.py",
        "No files matching '*.zip' in box",
        f"Files containing 'one':\n  {home}/box/a.py",
        f"Matches for 'one':\n  {home}/box/a.py:1: one",
        "Found 1 match(es) for 'one'",
        "No matches for 'nothing'",
        "one\n2\n",
        "Command failed (exit code 3):\noh\n",
    ]


async def test_long_lists_are_cut_and_say_so(box: Sandbox) -> None:
    box.exec("for i in $(seq 1000 1129); do printf 'hit %0200d\\nhit\\n' 0 > f$i.md; done")
    toolset = CorralToolset[Any](box)
    files, names, lines, output = await run(
        toolset,
        ("glob", {"pattern": "*.md"}),
        ("grep", {"pattern": "hit"}),
        ("grep", {"pattern": "hit", "output_mode": "content"}),
        ("execute", {"command": "yes | head -c 3000000"}),
    )
    assert files.startswith("Found 130 file(s) matching '*.md':\n")
    assert files.endswith("\n  ... and 30 more")
    assert names.endswith("\n  ... and 80 more files")
    assert lines.endswith("\n  ... and 210 more matches")
    assert max(len(line) for line in lines.splitlines()) < 150
    assert output.endswith("\n\n... (output truncated)")
    assert len(output) < 101_000


async def test_what_comes_from_inside_is_made_harmless(box: Sandbox) -> None:
    (shown,) = await run(CorralToolset(box), ("execute", {"command": "printf '\\033]0;x\\007\\033[31mred\\033[0m'"}))
    assert "\x1b" not in shown
    assert "\x07" not in shown
    assert "red" in shown


def make_png() -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    pixels = zlib.compress(b"\0\xff\0\0")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


async def test_an_image_is_shown_as_an_image(box: Sandbox) -> None:
    box.files.write("red.PNG", make_png())
    shown = await run(CorralToolset(box), ("read_file", {"path": "red.PNG"}))
    images = [
        item for content in shown for item in (content if isinstance(content, list) else [content])
        if isinstance(item, BinaryContent)
    ]  # fmt: skip
    assert [(image.data, image.media_type) for image in images] == [(make_png(), "image/png")]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (("read_file", {"path": "no.txt"}), "Error: File 'no.txt' not found"),
        (("read_file", {"path": "a.txt", "offset": 7}), "Error: Offset 7 exceeds file length (2 lines)"),
        (("read_file", {"path": "no.png"}), "Error: Image file 'no.png' not found or empty"),
        (("edit_file", {"path": "a.txt", "old_string": "x", "new_string": "y"}), "Error: String not found in file"),
        (
            ("edit_file", {"path": "a.txt", "old_string": "o", "new_string": "y"}),
            "Error: String found 2 times. Use replace_all=True to replace all, or provide more context.",
        ),
        (("edit_file", {"path": "no.txt", "old_string": "x", "new_string": "y"}), "Error: File not found: no.txt"),
        (("write_file", {"path": "a.txt/b", "content": "x"}), "Error: Failed to write file: "),
        (("grep", {"pattern": "x", "path": "no"}), "Error: "),
        (("execute", {"command": "true", "timeout": -1}), "Error: timeout=-1.0 is not a duration"),
    ],
)
async def test_a_model_gets_another_try_for_what_it_can_mend(box: Sandbox, call: Call, text: str) -> None:
    box.files.write("a.txt", "one\ntwo\n")
    (shown,) = await run(CorralToolset(box), call)
    assert str(shown).startswith(text)


async def test_a_model_that_never_learns_does_not_end_the_run(box: Sandbox) -> None:
    shown = await run(CorralToolset(box, max_retries=1), *[("read_file", {"path": "no.txt"})] * 5)
    assert len(shown) == 5


async def test_the_mistake_is_a_retry_and_not_a_result(box: Sandbox) -> None:
    script = Script(("read_file", {"path": "no.txt"}), ("read_file", {"path": "a.txt"}))
    box.files.write("a.txt", "here")
    result = await Agent(script.model, toolsets=[CorralToolset(box)]).run("go")
    parts = [part for message in result.all_messages() for part in message.parts]
    # A part of its own kind before Pydantic AI 2.60 or so, an outcome since.
    retries = [p for p in parts if isinstance(p, RetryPromptPart) or getattr(p, "outcome", None) == "retried"]
    assert len(retries) == 1


@pytest.mark.parametrize("kind", [CorralSandbox, DaytonaSandbox])
async def test_a_gone_sandbox_ends_the_run_and_is_never_output(kind: type[CorralSandbox], box: Sandbox) -> None:
    sandbox = kind.over(box)
    Sandbox.connect(box.detach()).kill()  # through another handle
    calls: list[Call] = [
        ("execute", {"command": "echo hi"}),
        ("read_file", {"path": "a"}),
        ("ls", {}),
        ("grep", {"pattern": "x"}),
        ("glob", {"pattern": "*"}),
        ("write_file", {"path": "a", "content": "b"}),
        ("edit_file", {"path": "a", "old_string": "b", "new_string": "c"}),
    ]
    for call in calls:
        with pytest.raises(SandboxGoneError):
            await run(CorralToolset(sandbox), call)


async def test_a_command_out_of_time_says_so(box: Sandbox) -> None:
    (shown,) = await run(CorralToolset(box), ("execute", {"command": "echo begun; sleep 60", "timeout": 0.5}))
    assert shown == "Command failed (exit code 124):\nbegun\nError: Command timed out after 0.5 seconds"


@pytest.mark.parametrize(
    "make",
    [CorralSandbox.over, AsyncCorralSandbox.over, DaytonaSandbox.over, lambda box: box],
    ids=["corral", "async", "daytona", "plain"],
)
async def test_the_known_toolset_finds_the_sandbox_in_deps(box: Sandbox, make: Callable[[Any], Any]) -> None:
    toolset = create_console_toolset(require_execute_approval=False)
    assert await run(toolset, ("execute", {"command": "echo hi"}), deps=Deps(make(box))) == ["hi\n"]


async def test_no_sandbox_is_the_programmers_mistake() -> None:
    with pytest.raises(UserError, match="no sandbox"):
        await run(CorralToolset(), ("ls", {}), deps=object())


async def test_the_known_toolset_asks_before_it_executes(box: Sandbox) -> None:
    script = Script(("execute", {"command": "echo hi"}))
    toolset = create_console_toolset(sandbox=CorralSandbox.over(box))
    agent = Agent(script.model, toolsets=[toolset], output_type=[str, DeferredToolRequests])
    result = await agent.run("go")
    assert isinstance(result.output, DeferredToolRequests)
    (call,) = result.output.approvals
    approved = DeferredToolResults(approvals={call.tool_call_id: True})
    after = await agent.run(message_history=result.all_messages(), deferred_tool_results=approved)
    assert after.output == "done"
    assert script.shown == ["hi\n"]


async def test_the_schemas_describe_every_parameter(box: Sandbox) -> None:
    script = Script()
    await Agent(script.model, toolsets=[CorralToolset(box)]).run("go")
    assert list(script.tools) == ["ls", "read_file", "write_file", "edit_file", "glob", "grep", "execute"]
    for schema in script.tools.values():
        for parameter in schema["properties"].values():
            assert parameter["description"]
    assert script.tools["execute"]["properties"]["timeout"]["default"] == 120


# Lines and hashes.


async def test_weak_point_15_lines_are_edited_by_long_hashes(box: Sandbox) -> None:
    box.files.write("a.txt", b"one\ntwo\nthr\xe9e\n")
    toolset = CorralToolset[Any](box, edit_format="hashline")
    (shown,) = await run(toolset, ("read_file", {"path": "a.txt"}))
    lines = [line.partition("|")[0].split(":") for line in shown.splitlines()]
    assert [number for number, _ in lines] == ["1", "2", "3"]
    assert {len(digest) for _, digest in lines} == {6}
    edit = {"path": "a.txt", "start_line": 2, "start_hash": lines[1][1], "new_content": "2\n2b"}
    short = {**edit, "start_hash": lines[1][1][:2]}
    shown = await run(toolset, ("hashline_edit", short), ("hashline_edit", edit), ("hashline_edit", edit))
    assert "Hash mismatch at line 2" in str(shown[0])
    assert shown[1] == "Edited a.txt: Replaced 1 line(s) with 2 line(s) at line 2"
    assert "File may have changed — re-read it first." in str(shown[2])
    assert box.files.read("a.txt") == b"one\n2\n2b\nthr\xe9e\n"


async def test_the_known_toolset_has_the_known_hashes(box: Sandbox) -> None:
    box.files.write("a.txt", "a\nb\nc\n")
    toolset = create_console_toolset(edit_format="hashline", sandbox=CorralSandbox.over(box))
    shown = await run(
        toolset,
        ("read_file", {"path": "a.txt", "limit": 2}),
        ("hashline_edit", {"path": "a.txt", "start_line": 1, "start_hash": "0c", "new_content": ""}),
    )
    assert shown == ["1:0c|a\n2:92|b\n\n... (1 more lines)", "Edited a.txt: Deleted 1 line(s) at line 1"]
    assert box.files.read("a.txt") == b"b\nc\n"


# Workspaces.


async def test_tools_work_in_the_runs_own_workspace() -> None:
    workspace = CorralWorkspace()
    try:
        script = Script(("execute", {"command": "echo hi > a.txt"}), ("read_file", {"path": "a.txt"}))
        await Agent(script.model, toolsets=[CorralToolset()]).run("go", workspace=workspace)
        assert script.shown == ["", "     1\thi"]
        assert await workspace.read_bytes(f"{await workspace.working_dir()}/a.txt") == b"hi\n"
    finally:
        await workspace.destroy()
        await workspace.aclose()


async def test_a_later_run_goes_on_in_the_workspace_of_an_earlier_one() -> None:
    agent = Agent(capabilities=[CorralWorkspaces(lifetime_seconds=600)], toolsets=[CorralToolset()])
    first = Script(("execute", {"command": "echo kept > a.txt"}))
    result = await agent.run("go", model=first.model)
    ref = result.all_messages()[-1].workspace_ref
    assert ref is not None
    try:
        second = Script(("execute", {"command": "cat a.txt"}))
        await agent.run("go on", model=second.model, workspace=ref)
        assert second.shown == ["kept\n"]
    finally:
        workspace = CorralWorkspace(ref)
        await workspace.destroy()
        await workspace.aclose()


async def test_too_many_retries_are_the_limit_of_the_toolset(box: Sandbox) -> None:
    script = Script(*[("read_file", {})] * 9)
    with pytest.raises(UnexpectedModelBehavior):
        await Agent(script.model, toolsets=[CorralToolset(box, max_retries=2)]).run("go")


async def test_a_search_that_never_ends_is_given_up(box: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corral.tools.reading.SEARCH_SECONDS", 0.5)
    box.files.write("a.txt", "a" * 60 + "!\n")
    (shown,) = await run(CorralToolset(box), ("grep", {"pattern": "(a+)+$"}))
    assert "the search took longer than 0.5 seconds" in str(shown)


async def test_a_search_that_ends_early_says_so(box: Sandbox) -> None:
    box.exec("seq 1 12000 > many.txt", check=True)
    shown = await run(
        CorralToolset(box),
        ("grep", {"pattern": "[0-9]", "output_mode": "count"}),
        ("grep", {"pattern": "^7$", "output_mode": "count"}),
    )
    assert shown[0].endswith("\n  [the search ended early, and there are more: give a narrower pattern or path]")
    assert shown[1] == "Found 1 match(es) for '^7$'"
