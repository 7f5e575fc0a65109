"""Tools on the fake: whose fault it was decides between a text and an error."""

import json
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from corral import Environment, Sandbox, SandboxGoneError, Spec, UnknownLanguageError, Variable, VariableError
from corral.backends.memory import MemoryBackend
from corral.errors import CapabilityError
from corral.results import Denial, ExecResult
from corral.spec import NetworkLimits, NetworkPolicy
from corral.tools import (
    BackgroundTools,
    CodeTool,
    FileTools,
    OperationRules,
    Permissions,
    Rule,
    ShellTool,
    Tool,
    ToolText,
)


@pytest.fixture
def backend() -> Iterator[MemoryBackend]:
    made = MemoryBackend()
    made.reply_code("print(6 * 7)", stdout="42\n")
    yield made
    assert made.count_living() == 0, "a sandbox was left behind"


@pytest.fixture
async def env(backend: MemoryBackend) -> AsyncIterator[Environment]:
    async with Environment(backend=backend) as env:
        yield env


# All tools.


async def test_tool_describes_itself_in_json(env: Environment) -> None:
    for tool in (CodeTool(env), ShellTool(env), *FileTools(env), *FileTools(env, hashline=True)):
        definition = json.loads(json.dumps(tool.definition()))
        assert definition["name"] == tool.name
        assert definition["description"]
        assert definition["parameters"] == tool.schema
        assert set(definition["parameters"]["required"]) <= set(definition["parameters"]["properties"])


@pytest.mark.parametrize("arguments", [None, "{", {"codes": 1}, [], {"code": 3, "language": "python"}])
async def test_bad_arguments_are_told_and_no_sandbox_is_made(backend: MemoryBackend, arguments: Any) -> None:
    async with Environment(backend=backend) as env:
        text = await CodeTool(env).call(arguments)
        assert not text.ok
        assert text.error == "arguments"
        assert text.startswith("Error: ")
        assert "run_code" in text
        assert backend.count_living() == 0


async def test_gone_sandbox_is_an_error_and_never_a_text(backend: MemoryBackend, env: Environment) -> None:
    tools: list[tuple[Tool, dict[str, Any]]] = [
        (CodeTool(env), {"code": "print(6 * 7)", "language": "python"}),
        (ShellTool(env), {"command": "echo hi"}),
        (ShellTool(env, readonly=True), {"command": "cat x"}),
        (FileTools(env)["ls"], {}),
        (FileTools(env)["write_file"], {"path": "a", "content": "b"}),
    ]
    for tool, arguments in tools:
        async with env.open() as box:
            backend._boxes[box.id].end()
        with pytest.raises(SandboxGoneError):
            await tool.call(arguments)
        assert isinstance(await tool.call(arguments), ToolText), "the next call has a new one"


async def test_variable_without_a_value_is_not_the_models_fault(backend: MemoryBackend) -> None:
    async with Environment(backend=backend, workdir=Variable("folder")) as env:
        with pytest.raises(VariableError):
            await ShellTool(env).call({"command": "pwd"})
        assert (await ShellTool(env).call({"command": "pwd"}, {"folder": "/there"})).startswith("/there\n")


async def test_sandbox_of_ones_own_is_used_and_left_alone(backend: MemoryBackend) -> None:
    async with await backend.create(Spec()) as box:
        assert (await ShellTool(box).call({"command": "echo hi"})).startswith("hi\n[exit code: 0")
        assert not box.closed


def test_plain_code_may_call_a_tool(backend: MemoryBackend) -> None:
    with Environment(backend=backend) as env:
        assert CodeTool(env).call_sync('{"code": "print(6 * 7)", "language": "python"}').startswith("42\n")


def test_what_gives_no_sandbox_is_refused(backend: MemoryBackend) -> None:
    with pytest.raises(TypeError, match="environment"):
        CodeTool(object())  # type: ignore[arg-type]  # that is the test
    with Sandbox(backend=backend) as box, pytest.raises(TypeError, match="async"):
        CodeTool(box)  # type: ignore[arg-type]  # a sync handle has no loop to be awaited in


# Code.


async def test_code_is_run_and_told(env: Environment) -> None:
    text = await CodeTool(env)({"code": "print(6 * 7)", "language": "py"})
    assert text.startswith("42\n[exit code: 0; ")
    assert text.ok
    assert isinstance(text.result, ExecResult)
    assert text.result.stdout == "42\n"


async def test_language_that_is_not_enabled_is_told_and_no_sandbox_is_made(backend: MemoryBackend) -> None:
    async with Environment(backend=backend) as env:
        text = await CodeTool(env, languages=["python"]).call({"code": "x", "language": "bash"})
        assert "language 'bash' is not enabled; available: python" in text
        assert text.error == "arguments"
        assert backend.count_living() == 0


async def test_only_language_need_not_be_named(env: Environment) -> None:
    tool = CodeTool(env, languages=["python"])
    assert tool.schema["required"] == ["code"]
    assert (await tool.call({"code": "print(6 * 7)"})).startswith("42\n")


async def test_missing_runtime_is_told(env: Environment) -> None:
    text = await CodeTool(env).call({"code": "1", "language": "javascript"})
    assert text.error == "backend_unavailable"
    assert "use another language" in text


def test_unknown_language_is_the_programs_mistake() -> None:
    with pytest.raises(UnknownLanguageError):
        CodeTool(Environment(backend=MemoryBackend()), languages=["ocaml"])


async def test_time_that_a_model_asks_for_is_bounded(backend: MemoryBackend, env: Environment) -> None:
    backend.reply_code("slow", stdout="begun\n", seconds=60)
    tool = CodeTool(env, timeout=30, max_timeout=40)
    assert "at most 40" in await tool.call({"code": "slow", "language": "python", "timeout_seconds": 50})
    text = await tool.call({"code": "slow", "language": "python", "timeout_seconds": 0.1})
    assert "[exit code: 124; timed out after" in text
    assert not text.ok


# Shell.


async def test_command_is_run_with_its_exit_code(env: Environment) -> None:
    assert (await ShellTool(env).call({"command": "echo hi > f; cat f; exit 3"})).startswith("hi\n[exit code: 3; ")


async def test_restricted_commands_are_run_without_a_shell(backend: MemoryBackend, env: Environment) -> None:
    tool = ShellTool(env, readonly=True)
    denied = await tool.call({"command": "rm -rf x"})
    assert denied == "Error: Command not allowed: 'rm -rf x'"
    assert denied.error == "policy"
    await tool.call({"command": "echo '$HOME'"})
    assert backend.calls[-1].argv == ("echo", "$HOME")


async def test_backend_without_views_is_said_to_have_argv_only(
    env: Environment, caplog: pytest.LogCaptureFixture
) -> None:
    tool = ShellTool(env, readonly=True)
    found = await tool.capabilities()
    assert (found.restricted, found.argv, found.kernel) == (True, True, False)
    assert "argv only" in found.notes[0]
    await tool.call({"command": "echo hi"})
    await tool.call({"command": "echo hi"})
    assert caplog.text.count("on the command line only") == 1
    assert not (await ShellTool(env).capabilities()).restricted


async def test_kernel_enforcement_is_never_less(env: Environment) -> None:
    with pytest.raises(CapabilityError):
        await ShellTool(env, readonly=True, enforcement="kernel").call({"command": "echo hi"})
    with pytest.raises(ValueError, match="one word"):
        ShellTool(env, allowed=["git log"], enforcement="kernel")
    with pytest.raises(ValueError, match="words"):
        ShellTool(env, allowed=["ls"], enforcement="words")  # type: ignore[arg-type]  # a slip that must not pass


@pytest.mark.parametrize(
    ("rules", "hint"),
    [
        ({}, "write the output to a file and read it piece by piece, or print less"),
        ({"readonly": True}, "request a part of it, for example with tail -n +LINE FILE"),
        ({"allowed": ["cat", "grep"]}, "request a part of it, for example with grep PATTERN FILE"),
        ({"allowed": ["cat"]}, "request a part of it"),
        ({"blocked": ["tail"]}, "request a part of it, for example with head -n LINES FILE"),
        ({"readonly": True, "enforcement": "kernel"}, "request a part of it, for example with | tail -n +LINE"),
        ({"ignore": ["x"], "enforcement": "kernel"}, "write the output to a file and read it piece by piece"),
    ],
)
async def test_way_to_the_rest_is_one_that_the_rules_let(env: Environment, rules: dict[str, Any], hint: str) -> None:
    assert ShellTool(env, **rules).hint.startswith(hint)


async def test_link_to_an_ignored_file_is_refused_by_where_it_leads(env: Environment) -> None:
    async with env.open() as box:
        await box.files.write("secret/key", b"k")
        await box.files.symlink("innocent", "secret/key")
        await box.files.symlink("out", "/etc")
    tool = ShellTool(env, ignore=["secret/**"])
    assert await tool.call({"command": "cat innocent"}) == "Error: Access denied: /home/daytona/secret/key"
    assert await tool.call({"command": "cat out/passwd"}) == "Error: Access denied: /etc/passwd"


async def test_own_description_and_name_are_kept(env: Environment) -> None:
    tool = ShellTool(env, name="sh", description="runs", readonly=True)
    assert (tool.name, tool.description) == ("sh", "runs")
    assert "/home/daytona" in ShellTool(env).description


# Files.


async def test_files_are_written_read_edited_and_found(env: Environment) -> None:
    tools = FileTools(env)
    assert tools.names == ("ls", "read_file", "write_file", "edit_file", "glob", "grep")
    said = await tools["write_file"].call({"path": "a/b c.txt", "content": "one\ntwo\n"})
    assert said == "Wrote 2 lines (8 bytes) to a/b c.txt"
    assert await tools["read_file"].call({"path": "a/b c.txt"}) == "     1\tone\n     2\ttwo"
    said = await tools["edit_file"].call({"path": "a/b c.txt", "old_string": "two", "new_string": "2"})
    assert said == "Edited a/b c.txt: replaced 1 occurrence(s)"
    assert await tools["ls"].call({}) == "Contents of .:\n  a/"
    assert "/home/daytona/a/b c.txt" in await tools["glob"].call({"pattern": "**/*.txt"})
    assert await tools["grep"].call({"pattern": "^2$"}) == "/home/daytona/a/b c.txt:2: 2"


@pytest.mark.parametrize("pattern", ["don't", "-v", "a b", '"', "$(id)", "x' /dev/null; echo PWNED; echo '"])
async def test_patterns_are_patterns_and_nothing_else(env: Environment, pattern: str) -> None:
    async with env.open() as box:
        await box.files.write("f", f"say {pattern}\n")
    text = await FileTools(env)["grep"].call({"pattern": pattern, "fixed": True})
    assert text == f"/home/daytona/f:1: say {pattern}"


@pytest.mark.parametrize(
    ("name", "arguments", "code"),
    [
        ("read_file", {"path": "nothing"}, "file_not_found"),
        ("read_file", {"path": "/etc"}, "is_folder"),
        ("read_file", {"path": ""}, "file"),
        ("read_file", {"path": "a\0b"}, "file"),
        ("read_file", {"path": "f", "offset": 9}, "arguments"),
        ("ls", {"path": "nothing"}, "file_not_found"),
        ("edit_file", {"path": "f", "old_string": "zzz", "new_string": "y"}, "edit"),
        ("edit_file", {"path": "f", "old_string": "", "new_string": "y"}, "edit"),
        ("edit_file", {"path": "f", "old_string": "x", "new_string": "x"}, "arguments"),
        ("edit_file", {"path": "f", "old_string": "line", "new_string": "y"}, "edit"),
        ("grep", {"pattern": "("}, "file"),
        ("grep", {"pattern": "x", "output_mode": "z"}, "arguments"),
        ("glob", {"pattern": "*", "path": "nothing"}, "file_not_found"),
    ],
)
async def test_mistakes_are_told(env: Environment, name: str, arguments: dict[str, Any], code: str) -> None:
    async with env.open() as box:
        await box.files.write("f", b"line\nline\n")
    text = await FileTools(env)[name].call(arguments)
    assert text.error == code
    assert not text.ok


async def test_long_file_comes_in_pieces_that_join(env: Environment) -> None:
    lines = [f"line {number}" for number in range(5000)]
    async with env.open() as box:
        await box.files.write("long", "\n".join(lines))
    tool, seen, offset = FileTools(env, max_chars=5000)["read_file"], [], 0
    while True:
        text = await tool.call({"path": "long", "offset": offset})
        assert len(text) <= 5000
        body = text.split("\n")
        if not text.truncated:
            seen += [line.partition("\t")[2] for line in body]
            break
        seen += [line.partition("\t")[2] for line in body[:-1]]
        offset = int(body[-1].rpartition("offset=")[2].rstrip("]"))
    assert seen == lines


async def test_bytes_that_are_no_text_are_described_and_never_spoilt(env: Environment) -> None:
    async with env.open() as box:
        await box.files.write("image", b"\x89PNG\r\n\x1a\n\0\0")
        await box.files.write("latin", b"caf\xe9\r\nnext\r\n")
    tools = FileTools(env)
    assert "is not a text file: 10 bytes, starting with 89 50 4e 47" in await tools["read_file"].call({"path": "image"})
    edit = {"path": "latin", "old_string": "next", "new_string": "last"}
    assert (await tools["edit_file"].call(edit)).ok
    several = {"path": "latin", "old_string": "last\n", "new_string": "one\ntwo\n"}
    assert (await tools["edit_file"].call(several)).ok
    async with env.open() as box:
        assert await box.files.read("latin") == b"caf\xe9\r\none\r\ntwo\r\n"


async def test_lines_are_edited_by_hash_and_a_stale_one_is_refused(env: Environment) -> None:
    tools = FileTools(env, hashline=True)
    async with env.open() as box:
        await box.files.write("f", b"one\r\nt\xffo\r\nthree")
    shown = (await tools["read_file"].call({"path": "f"})).split("\n")
    number, _, rest = shown[1].partition(":")
    tag = rest.partition("|")[0]
    edit = {"path": "f", "start_line": int(number), "start_hash": tag, "new_content": "2\n2b"}
    assert (await tools["hashline_edit"].call(edit)).ok
    async with env.open() as box:
        assert await box.files.read("f") == b"one\r\n2\r\n2b\r\nthree"
    again = await tools["hashline_edit"].call(edit)
    assert again.error == "edit"
    assert "Hash mismatch at line 2" in again
    assert "edit_file" not in tools


# Rules.


RULES = Permissions(
    read=OperationRules("allow", (Rule("**/.env", "deny", "secrets"), Rule("**/maybe", "ask", "sure?"))),
    write=OperationRules("deny"),
    ls=OperationRules("allow", (Rule("**/hidden/**", "deny"),)),
)


@pytest.fixture
async def files(env: Environment) -> Environment:
    async with env.open() as box:
        await box.files.write(".env", b"TOKEN=hunter2\n")
        await box.files.write("hidden/x", b"hunter2\n")
        await box.files.write("maybe", b"hunter2 perhaps\n")
        await box.files.write("plain", b"not hunter2\n")
        await box.files.symlink("link", ".env")
        await box.files.symlink("loop", "loop")
    return env


@pytest.mark.parametrize("path", [".env", "./.env", "/home/daytona/.env", "x/../.env", "link", "hidden/../link"])
async def test_rule_holds_for_every_name_of_a_path(files: Environment, path: str) -> None:
    text = await FileTools(files, permissions=RULES)["read_file"].call({"path": path})
    assert text.error == "policy"
    assert "hunter2" not in text


async def test_search_shows_nothing_that_may_not_be_read(files: Environment) -> None:
    tools = FileTools(files, permissions=RULES)
    text = await tools["grep"].call({"pattern": "hunter2", "ignore_hidden": False})
    assert "plain" in text
    assert ".env" not in text
    assert "link" not in text
    assert "maybe" not in text
    assert "hidden" not in await tools["ls"].call({})
    assert (await tools["ls"].call({"path": "hidden"})).error == "policy"


async def test_operation_that_is_never_allowed_has_no_tool(files: Environment) -> None:
    assert "write_file" not in FileTools(files, permissions=RULES)


async def test_ask_calls_on_ask(files: Environment) -> None:
    asked: list[tuple[str, str, str]] = []

    async def answer(operation: str, path: str, note: str) -> bool:
        asked.append((operation, path, note))
        return len(asked) > 1

    assert (await FileTools(files, permissions=RULES)["read_file"].call({"path": "maybe"})).error == "policy"
    tool = FileTools(files, permissions=RULES, on_ask=answer)["read_file"]
    assert (await tool.call({"path": "maybe"})).error == "policy"
    assert "hunter2 perhaps" in await tool.call({"path": "maybe"})
    assert asked[0] == ("read", "/home/daytona/maybe", "sure?")


async def test_links_in_a_circle_are_told(files: Environment) -> None:
    text = await FileTools(files, permissions=RULES)["read_file"].call({"path": "loop"})
    assert text.error == "file_not_found"


# The network.


async def test_refused_attempts_are_told_to_the_model_by_every_tool_that_runs_programs(backend: MemoryBackend) -> None:
    denied = [Denial("example.org", 443, "policy")]
    line = "[network: blocked example.org:443; allowed are a.org; if it is needed, ask the user to allow it]"
    backend.reply_code("fetch()", denied=denied)
    backend.reply(re.compile("fetch"), denied=denied)
    async with Environment(backend=backend, network="a.org") as env:
        text = await CodeTool(env).call({"code": "fetch()", "language": "python"})
        assert text.endswith(f"\n{line}")
        assert isinstance(text.result, ExecResult)
        assert text.result.denied == tuple(denied)
        assert (await ShellTool(env).call({"command": "fetch"})).endswith(f"\n{line}")
        assert "network" not in await ShellTool(env).call({"command": "true"})
        background = BackgroundTools(env)
        await background["execute_background"].call({"command": "fetch"})
        read = await background["read_background"].call({"shell_id": "shell-1", "wait_seconds": 30})
        assert read.endswith(f"\n{line}")
        again = await background["read_background"].call({"shell_id": "shell-1"})
        assert "network" not in again


async def test_environment_keeps_a_sandbox_for_each_policy(backend: MemoryBackend) -> None:
    async with Environment(backend=backend, network=Variable("network")) as env:
        seen = {}
        for wanted in ("none", "a.org", ["a.org"], NetworkPolicy("allow", ("a.org",), NetworkLimits(connections=1))):
            async with env.open({"network": wanted}) as box:
                seen.setdefault(box.id, []).append(str(box.spec.network))
        assert list(seen.values()) == [["none"], ["a.org", "a.org"], ["a.org"]]
