"""Commands in the background: the known methods, and the tools of an agent."""

import asyncio
from typing import Any

import pytest
from pydantic_ai import Agent, DeferredToolRequests

from adapters.pydantic_ai.scripted import Script, run
from corral import ExecError, Sandbox, SandboxGoneError
from corral.adapters.pydantic_ai import (
    BackgroundHandle,
    BackgroundOutput,
    BackgroundProcessInfo,
    CorralSandbox,
    CorralToolset,
    DaytonaSandbox,
    OperationPermissions,
    PermissionRule,
    PermissionRuleset,
)

pytestmark = pytest.mark.needs_userns

NAMES = [f"{name}_background" for name in ("execute", "read", "write", "kill", "list")]


def read_all(sandbox: CorralSandbox, shell_id: str) -> BackgroundOutput:
    """Until it has ended."""
    stdout = stderr = ""
    while True:
        output = sandbox.read_background(shell_id, wait_seconds=60)
        stdout, stderr = stdout + output.stdout, stderr + output.stderr
        if not output.running and not output.waiting:
            return BackgroundOutput(shell_id, stdout, stderr, running=False, exit_code=output.exit_code)


def test_the_known_methods(sandbox: CorralSandbox) -> None:
    handle = sandbox.execute_background("cat; echo oh >&2; exit 4")
    assert isinstance(handle, BackgroundHandle)
    assert handle.pid > 0
    assert handle.command == "cat; echo oh >&2; exit 4"
    (info,) = sandbox.list_background()
    assert info == BackgroundProcessInfo(handle.shell_id, handle.command, running=True)
    assert sandbox.write_background(handle.shell_id, "hello\n", close=True)
    assert read_all(sandbox, handle.shell_id) == BackgroundOutput(
        handle.shell_id, "hello\n", "oh\n", running=False, exit_code=4
    )
    assert sandbox.read_background(handle.shell_id).stdout == ""
    assert not sandbox.kill_background(handle.shell_id)


def test_it_starts_in_the_working_folder_and_outlives_the_call() -> None:
    with CorralSandbox(work_dir="/tmp/my place") as sandbox:
        handle = sandbox.execute_background("pwd; touch made; sleep 1000")
        while "\n" not in sandbox.read_background(handle.shell_id, wait_seconds=60).stdout:
            pass
        while not sandbox.exists("made"):
            pass
        assert sandbox.kill_background(handle.shell_id)
        assert [info.running for info in sandbox.list_background()] == [False]


def test_all_are_ended_at_once(sandbox: CorralSandbox) -> None:
    for _ in range(3):
        sandbox.execute_background("sleep 1000")
    sandbox.kill_all_background()
    assert [info.running for info in sandbox.list_background()] == [False] * 3


def test_what_is_not_there_is_returned(sandbox: CorralSandbox) -> None:
    output = sandbox.read_background("shell-9")
    assert (output.running, output.exit_code, output.stdout) == (False, None, "")
    assert output.stderr.startswith("Error: no background command named")
    assert isinstance(output.error, ExecError)
    assert not sandbox.write_background("shell-9", "x")
    assert not sandbox.kill_background("shell-9")
    with pytest.raises(ExecError, match="empty"):
        sandbox.execute_background("  ")


def test_a_gone_sandbox_is_raised_or_by_the_known_class_returned(box: Sandbox) -> None:
    general, known = CorralSandbox.over(box), DaytonaSandbox.over(box)
    handle = general.execute_background("sleep 1000")
    Sandbox.connect(box.detach()).kill()  # through another handle
    with pytest.raises(SandboxGoneError):
        general.execute_background("echo hi")
    with pytest.raises(SandboxGoneError):
        known.execute_background("echo hi")  # there is no handle that could say so
    assert not known.write_background(handle.shell_id, "x")


async def test_an_agent_starts_a_server_and_uses_it(box: Sandbox) -> None:
    shown = await run(
        CorralToolset(box, include_background=True),
        ("execute_background", {"command": "python3 -u -m http.server 8000"}),
        ("read_background", {"shell_id": "shell-1", "wait_seconds": 60}),
        (
            "execute",
            {"command": "python3 -c \"import urllib.request as u; print(u.urlopen('http://localhost:8000').status)\""},
        ),
        ("list_background", {}),
        ("kill_background", {"shell_id": "shell-1"}),
    )
    assert shown[0] == "Started shell-1. Read what it prints with read_background."
    assert "Serving HTTP" in shown[1]
    assert shown[2] == "200\n"
    assert shown[3] == "shell-1: running: python3 -u -m http.server 8000"
    assert shown[4] == "shell-1 was killed"


async def test_an_agent_types_into_a_command(box: Sandbox) -> None:
    shown = await run(
        CorralToolset(box, include_background=True),
        ("execute_background", {"command": 'while read line; do echo "<$line>"; done'}),
        ("write_background", {"shell_id": "shell-1", "text": "one\n"}),
        ("read_background", {"shell_id": "shell-1", "wait_seconds": 60}),
        ("write_background", {"shell_id": "shell-9", "text": "one\n"}),
    )
    assert shown[2] == "<one>\n[shell-1: running]"
    assert "no background command named 'shell-9'" in str(shown[3])


async def test_they_are_there_when_asked_for_and_fully_described(box: Sandbox) -> None:
    plain, full, forbidden = Script(), Script(), Script()
    await Agent(plain.model, toolsets=[CorralToolset(box)]).run("go")
    assert not set(NAMES) & set(plain.tools)
    await Agent(full.model, toolsets=[CorralToolset(box, include_background=True)]).run("go")
    assert list(full.tools)[-5:] == NAMES
    for name in NAMES:
        for parameter in full.tools[name]["properties"].values():
            assert parameter["description"]
    rules = PermissionRuleset(default="allow", execute=OperationPermissions("deny"))
    await Agent(forbidden.model, toolsets=[CorralToolset(box, include_background=True, permissions=rules)]).run("go")
    assert not set(NAMES) & set(forbidden.tools)


async def test_rules_for_commands_hold_for_what_is_started_and_for_what_is_typed(box: Sandbox) -> None:
    rules = PermissionRuleset(
        default="allow", execute=OperationPermissions("allow", [PermissionRule("rm *", "deny", "Nothing is removed")])
    )
    box.files.write("a", "x")
    shown = await run(
        CorralToolset(box, include_background=True, permissions=rules),
        ("execute_background", {"command": "rm a"}),
        ("execute_background", {"command": "sh"}),
        ("write_background", {"shell_id": "shell-1", "text": "rm a\n"}),
    )
    assert shown[0] == "Permission denied for execute on 'rm a': Nothing is removed"
    assert str(shown[2]).startswith("Permission denied for execute on 'rm a")
    assert box.files.exists("a")


async def test_what_is_started_needs_the_approval_that_execute_needs(box: Sandbox) -> None:
    script = Script(("execute_background", {"command": "echo hi"}))
    toolset = CorralToolset[Any](box, include_background=True, require_execute_approval=True)
    agent = Agent(script.model, toolsets=[toolset], output_type=[str, DeferredToolRequests])
    result = await agent.run("go")
    assert isinstance(result.output, DeferredToolRequests)
    await asyncio.sleep(0)
    assert CorralSandbox.over(box).list_background() == []
