"""Rules for what a model may read, write, find and run: enforced for every path, and on request by the kernel."""

from typing import Any

import pytest
from pydantic_ai import Agent, DeferredToolRequests, RunContext
from pydantic_ai.exceptions import ApprovalRequired, ToolFailed
from pydantic_ai.models.test import TestModel
from pydantic_ai.usage import RunUsage

from adapters.pydantic_ai.scripted import Call, Script, run
from corral import CapabilityError, Sandbox
from corral.adapters.pydantic_ai import (
    READONLY_RULESET,
    STRICT_RULESET,
    ConsoleCapability,
    CorralToolset,
    OperationPermissions,
    PermissionRule,
    PermissionRuleset,
)

pytestmark = pytest.mark.needs_userns

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
    """A link that is exchanged during the approval leads to the same file as when the rules were checked."""
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


async def test_folders_that_can_not_be_listed_and_other_names_of_a_file_are_hidden_too(box: Sandbox) -> None:
    links = "ln open/my.key open/same.txt; ln open/my.key /tmp/same.txt; ln open/my.key hidden; "
    box.exec(PREPARE + links + "mkdir shut; cp open/my.key shut; chmod 300 shut", check=True)
    toolset = CorralToolset[Any](box, permissions=SECRET, hide_denied=True)
    commands = (
        "cat shut/my.key 2>&1; cat open/same.txt 2>&1; cat /tmp/same.txt 2>&1; true",
        "mkdir more; chmod 300 open; cat open/my.key; true",
    )
    for command in (*commands, "cat open/my.key 2>&1; chmod 700 open shut; cat open/my.key shut/my.key 2>&1; true"):
        (shown,) = await run(toolset, ("execute", {"command": command}))
        assert "needle" not in shown, command


async def test_an_approval_is_for_where_a_link_led(box: Sandbox) -> None:
    box.exec("mkdir -p mine secret; ln -s mine/a.txt door.txt", check=True)
    rules = PermissionRuleset(default="allow", write=OperationPermissions("ask"))
    asked: list[str] = []

    def say_yes(operation: str, target: str, reason: str) -> bool:
        asked.append(target)
        return True

    toolset = CorralToolset[Any](box, permissions=rules, ask_callback=say_yes)
    await run(toolset, ("write_file", {"path": "door.txt", "content": "x"}))
    await run(toolset, ("write_file", {"path": "mine/b.txt", "content": "x"}))
    assert asked == ["/home/daytona/mine/a.txt", "mine/b.txt"]
    # An approval that Pydantic AI carries: what was shown is compared with what would be written.
    toolset = CorralToolset[Any](box, permissions=rules)
    call: dict[str, Any] = {"deps": None, "model": TestModel(), "usage": RunUsage(), "tool_call_id": "one"}
    with pytest.raises(ApprovalRequired) as required:
        await toolset.write_file(RunContext(**call), "door.txt", "y")
    assert (required.value.metadata or {})["target"] == "/home/daytona/mine/a.txt"
    box.exec("ln -sfn secret/a.txt door.txt", check=True)
    with pytest.raises(ToolFailed, match=r"a link to '/home/daytona/secret/a\.txt'"):
        await toolset.write_file(RunContext(**call, tool_call_approved=True), "door.txt", "y")
    plain = CorralToolset[Any](box, require_write_approval=True)
    with pytest.raises(ToolFailed, match="use that path"):
        await plain.write_file(RunContext(**call, tool_call_approved=True), "door.txt", "y")
    assert not box.files.exists("secret/a.txt")


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


@pytest.mark.parametrize("pattern", ["hidden/**", "hidden/a.txt", "a.txt"])
async def test_rules_without_a_slash_in_front_are_for_the_working_folder(box: Sandbox, pattern: str) -> None:
    box.exec(PREPARE, check=True)
    rules = PermissionRuleset(default="allow", read=OperationPermissions("allow", [PermissionRule(pattern, "deny")]))
    shown = await run(
        CorralToolset[Any](box, permissions=rules, hide_denied=True),
        ("read_file", {"path": "hidden/a.txt"}),
        ("read_file", {"path": "/home/daytona/hidden/a.txt"}),
        ("read_file", {"path": "open/door/a.txt"}),
        ("grep", {"pattern": "needle"}),
        ("execute", {"command": "grep -rs needle . | sort"}),
    )
    assert all(str(text).startswith("Permission denied for read on ") for text in shown[:3])
    assert "hidden" not in shown[3]
    assert shown[4] == "./open/b.txt:needle\n./open/my.key:needle\n"
