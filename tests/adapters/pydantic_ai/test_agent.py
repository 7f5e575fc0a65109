"""A real agent with a scripted model: what the model is shown, and what becomes of what it asks for."""

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
from corral import CapabilityError, Sandbox, SandboxGoneError
from corral.adapters.pydantic_ai import (
    READONLY_RULESET,
    STRICT_RULESET,
    AsyncCorralSandbox,
    ConsoleCapability,
    CorralSandbox,
    CorralToolset,
    CorralWorkspace,
    CorralWorkspaces,
    DaytonaSandbox,
    OperationPermissions,
    PermissionRule,
    PermissionRuleset,
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
        (("execute", {"command": "true", "timeout": -1}), "Error: timeout=-1.0 is not a time"),
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
    Sandbox.connect(box.detach()).kill()  # by somebody else
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


# Rules.

SECRET = PermissionRuleset(
    default="allow",
    read=OperationPermissions("allow", [PermissionRule("**/*.key", "deny", "Protect sensitive files")]),
    write=OperationPermissions("allow", [PermissionRule("/etc/**", "deny")]),
    edit=OperationPermissions("deny", [PermissionRule("/home/daytona/mine/**", "allow")]),
    ls=OperationPermissions("allow", [PermissionRule("**/hidden", "deny")]),
    glob=OperationPermissions("allow", [PermissionRule("**/hidden/**", "deny")]),
    grep=OperationPermissions("allow", [PermissionRule("**/hidden/**", "deny")]),
    execute=OperationPermissions("allow", [PermissionRule("rm *", "deny", "Nothing is removed")]),
)
PREPARE = """
mkdir -p hidden mine open
echo needle > hidden/a.txt; echo needle > open/b.txt; echo needle > open/my.key
ln -s my.key open/harmless.txt; ln -s ../hidden open/door; ln -s /etc mine/out
"""


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            ("read_file", {"path": "open/my.key"}),
            "Permission denied for read on 'open/my.key': Protect sensitive files",
        ),
        (("read_file", {"path": "open/../open/./my.key"}), "Permission denied for read on "),
        (("read_file", {"path": "open/harmless.txt"}), "Permission denied for read on 'open/harmless.txt'"),
        (("write_file", {"path": "/etc/passwd", "content": ""}), "Permission denied for write on '/etc/passwd'"),
        (("write_file", {"path": "mine/out/passwd", "content": ""}), "Permission denied for write on "),
        (("write_file", {"path": "../../etc/x", "content": ""}), "Permission denied for write on "),
        (("edit_file", {"path": "open/b.txt", "old_string": "n", "new_string": "m"}), "Permission denied for edit on "),
        (("ls", {"path": "hidden"}), "Permission denied for ls on 'hidden'"),
        (("ls", {"path": "open/door"}), "Permission denied for ls on 'open/door'"),
        (("glob", {"pattern": "*", "path": "hidden"}), "Permission denied for glob on "),
        (("glob", {"pattern": "/home/daytona/hidden/*"}), "Permission denied for glob on "),
        (("grep", {"pattern": "needle", "path": "hidden"}), "Permission denied for grep on "),
        (("grep", {"pattern": "needle", "path": "open/door"}), "Permission denied for grep on "),
        (("execute", {"command": "rm  -rf  open"}), "Permission denied for execute on 'rm  -rf  open': Nothing is "),
    ],
)
async def test_weak_point_14_rules_hold_for_every_path_and_operation(box: Sandbox, call: Call, text: str) -> None:
    box.exec(PREPARE, check=True)
    (shown,) = await run(CorralToolset(box, permissions=SECRET), call)
    assert str(shown).startswith(text)


async def test_weak_point_14_searches_do_not_show_what_may_not_be_seen(box: Sandbox) -> None:
    box.exec(PREPARE, check=True)
    shown = await run(
        CorralToolset(box, permissions=SECRET),
        ("grep", {"pattern": "needle", "output_mode": "content"}),
        ("glob", {"pattern": "**/*.txt"}),
        ("ls", {}),
    )
    home = "/home/daytona"
    assert shown[0] == f"Matches for 'needle':\n  {home}/open/b.txt:1: needle"
    assert f"{home}/hidden/a.txt" not in shown[1]
    assert f"{home}/open/b.txt" in shown[1]
    assert "hidden" not in shown[2]


@pytest.mark.parametrize(
    "path", ["/home/daytona/open", "open/../open", "../daytona/./open", "mine/way", "/home//daytona/open/"]
)
async def test_weak_point_14_no_spelling_of_a_folder_goes_round_a_rule(box: Sandbox, path: str) -> None:
    box.exec(PREPARE + "ln -s ../open mine/way", check=True)
    rules = PermissionRuleset(
        default="allow",
        read=OperationPermissions("allow", [PermissionRule("/home/daytona/open/b.txt", "deny")]),
        ls=OperationPermissions("allow", [PermissionRule("/home/daytona/open/b.txt", "deny")]),
        glob=OperationPermissions("allow", [PermissionRule("/home/daytona/open/b.txt", "deny")]),
    )
    shown = await run(
        CorralToolset(box, permissions=rules),
        ("grep", {"pattern": "needle", "path": path}),
        ("glob", {"pattern": "*", "path": path}),
        ("ls", {"path": path}),
        ("read_file", {"path": f"{path}/b.txt"}),
    )
    assert ["my.key" in text for text in shown] == [True, True, True, False]
    assert ["b.txt" in text for text in shown] == [False, False, False, True]
    assert shown[3].startswith("Permission denied for read on")


@pytest.mark.parametrize("permissions", [None, SECRET], ids=["free", "ruled"])
@pytest.mark.parametrize("path", ["a\0b", "x" * 5000, ""], ids=["nul", "long", "empty"])
async def test_a_path_that_can_not_be_is_the_models_to_mend(
    box: Sandbox, permissions: PermissionRuleset | None, path: str
) -> None:
    shown = await run(
        CorralToolset(box, permissions=permissions),
        ("read_file", {"path": path}),
        ("write_file", {"path": path, "content": "x"}),
        ("grep", {"pattern": "x", "path": path}),
        ("glob", {"pattern": "x", "path": path}),
        ("ls", {"path": path}),
    )
    assert len(shown) == 5


async def test_weak_point_14_the_capability_passes_everything_on(box: Sandbox) -> None:
    script = Script(("read_file", {"path": "a.key"}))
    capability = ConsoleCapability(edit_format="hashline", permissions=READONLY_RULESET, sandbox=box)
    await Agent(script.model, capabilities=[capability]).run("go")
    assert list(script.tools) == ["ls", "read_file", "glob", "grep"]
    assert str(script.shown[0]).startswith("Permission denied for read")
    script = Script()
    await Agent(script.model, capabilities=[ConsoleCapability(edit_format="hashline", sandbox=box)]).run("go")
    assert "hashline_edit" in script.tools
    assert "edit_file" not in script.tools


async def test_asking_is_an_approval_or_a_callback(box: Sandbox) -> None:
    call = ("write_file", {"path": "a.txt", "content": "x"})
    script = Script(call)
    agent = Agent(
        script.model,
        toolsets=[CorralToolset(box, permissions=STRICT_RULESET)],
        output_type=[str, DeferredToolRequests],
    )
    result = await agent.run("go")
    assert isinstance(result.output, DeferredToolRequests)
    (asked,) = result.output.approvals
    assert result.output.metadata[asked.tool_call_id]["operation"] == "write"
    assert not box.files.exists("a.txt")

    questions: list[tuple[str, str]] = []

    async def say(operation: str, target: str, reason: str) -> bool:
        questions.append((operation, target))
        return target == "a.txt"

    toolset = CorralToolset[Any](box, permissions=STRICT_RULESET, ask_callback=say)
    shown = await run(toolset, call, ("write_file", {"path": "b.txt", "content": "x"}))
    assert shown == ["Wrote 1 lines to a.txt", "Permission denied for write on 'b.txt'"]
    assert questions == [("write", "a.txt"), ("write", "b.txt")]

    denying = CorralToolset[Any](box, permissions=STRICT_RULESET, ask_fallback="deny")
    assert await run(denying, call) == ["Permission denied for write on 'a.txt'"]


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


# What the record of the known system misses: each mended here.


@pytest.mark.parametrize("action", ["deny", "ask"])
async def test_weak_point_14_grep_shows_nothing_of_a_file_that_may_only_be_read_after_asking(
    box: Sandbox, action: Any
) -> None:
    box.exec(PREPARE, check=True)
    rules = PermissionRuleset(
        default="allow", read=OperationPermissions("allow", [PermissionRule("**/*.key", action, "Ask first")])
    )
    shown = await run(
        CorralToolset(box, permissions=rules), ("grep", {"pattern": "needle", "path": "open", "output_mode": "content"})
    )
    assert shown == ["Matches for 'needle':\n  /home/daytona/open/b.txt:1: needle"]


async def test_a_rule_that_was_asked_about_holds_for_all_that_is_found(box: Sandbox) -> None:
    box.exec(PREPARE, check=True)
    asked: list[str] = []

    def say_yes(operation: str, target: str, reason: str) -> bool:
        asked.append(target)
        return True

    rules = PermissionRuleset(
        default="allow", ls=OperationPermissions("allow", [PermissionRule("/home/daytona/open/**", "ask")])
    )
    (shown,) = await run(CorralToolset(box, permissions=rules, ask_callback=say_yes), ("ls", {"path": "open"}))
    assert "b.txt" in shown
    assert asked == ["open"]


async def test_weak_point_14_what_was_judged_is_what_is_used(box: Sandbox) -> None:
    """A link that is exchanged while somebody is asked leads nowhere else than when the rules were asked."""
    box.exec("mkdir -p mine secret; echo mine > mine/a.txt; echo secret > secret/a.txt; ln -s mine door", check=True)

    def exchange(operation: str, target: str, reason: str) -> bool:
        box.exec("ln -sfn secret door", check=True)
        return True

    rules = PermissionRuleset(
        default="ask", read=OperationPermissions("ask", [PermissionRule("/home/daytona/secret/**", "deny")])
    )
    toolset = CorralToolset[Any](box, permissions=rules, ask_callback=exchange)
    assert await run(toolset, ("read_file", {"path": "door/a.txt"})) == ["     1\tmine"]
    box.exec("ln -sfn mine door", check=True)
    edit = {"path": "door/a.txt", "old_string": "mine", "new_string": "edited"}
    assert await run(toolset, ("edit_file", edit)) == ["Edited door/a.txt: replaced 1 occurrence(s)"]
    box.exec("ln -sfn mine door", check=True)
    assert await run(toolset, ("write_file", {"path": "door/b.txt", "content": "x"})) == ["Wrote 1 lines to door/b.txt"]
    assert box.files.read("secret/a.txt") == b"secret\n"
    assert box.files.read("mine/a.txt") == b"edited\n"
    assert box.files.exists("mine/b.txt")
    assert not box.files.exists("secret/b.txt")


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


LOOK = """
cat open/my.key open/harmless.txt 2>&1; python3 -c "print(open('open/my.key').read())" 2>&1 | tail -1
find . -name my.key -exec cat {} + 2>&1; cat hidden/a.txt; sh -c 'cat open/b.txt'; env cat .env 2>&1
"""


async def test_weak_point_14_the_kernel_hides_from_commands_what_may_not_be_read(box: Sandbox) -> None:
    box.exec(PREPARE + "echo needle > .env; ln -s / root; ln -s nowhere lost", check=True)
    patterns = ("**/*.key", "**/.env", "/home/daytona/hidden/**", "**/root", "**/lost")
    rules = PermissionRuleset(
        default="allow", read=OperationPermissions("allow", [PermissionRule(pattern, "deny") for pattern in patterns])
    )
    toolset = CorralToolset[Any](box, permissions=rules, hide_denied=True)
    shown = await run(toolset, ("execute", {"command": LOOK}), ("execute", {"command": "echo made > new; cat new"}))
    assert shown[0].count("needle") == 1  # of open/b.txt, which may be read
    assert shown[1] == "made\n"
    assert box.exec("cat open/my.key hidden/a.txt .env").stdout == "needle\n" * 3  # other calls see everything
    assert "needle" in (await run(CorralToolset(box, permissions=rules), ("execute", {"command": LOOK})))[0]


async def test_weak_point_14_commands_see_what_a_rule_allows_where_the_rest_is_denied(box: Sandbox) -> None:
    box.exec(PREPARE, check=True)
    rules = PermissionRuleset(default="allow", read=OperationPermissions("deny", [PermissionRule("**/b.txt", "allow")]))
    toolset = CorralToolset[Any](box, permissions=rules, hide_denied=True)
    (shown,) = await run(toolset, ("execute", {"command": "cat open/* hidden/* 2>/dev/null; true"}))
    assert shown == "needle\n"


async def test_weak_point_14_where_nothing_may_be_written_commands_write_nothing(box: Sandbox) -> None:
    rules = PermissionRuleset(default="allow", write=OperationPermissions("deny"), edit=OperationPermissions("deny"))
    toolset = CorralToolset[Any](box, permissions=rules, hide_denied=True)
    (shown,) = await run(toolset, ("execute", {"command": "echo x > a.txt; echo y > /tmp/b; echo still running"}))
    assert "still running" in shown
    assert not box.files.exists("a.txt")
    assert not box.files.exists("/tmp/b")


async def test_weak_point_14_hiding_is_refused_where_it_can_not_be_kept(box: Sandbox) -> None:
    with pytest.raises(ValueError, match="needs permissions="):
        CorralToolset(box, hide_denied=True)
    with pytest.raises(ValueError, match="in the background"):
        CorralToolset(box, permissions=SECRET, hide_denied=True, include_background=True)
    with Sandbox(backend="memory") as fake:
        fake.files.write("my.key", "x")
        with pytest.raises(CapabilityError):
            await run(CorralToolset(fake, permissions=SECRET, hide_denied=True), ("execute", {"command": "ls"}))
