"""What AG2's users know of its environments, as a table, in each of ours: results, messages, errors."""

import inspect
from collections.abc import Awaitable, Callable
from pathlib import PurePosixPath
from typing import Any

import pytest

from adapters.ag2.conftest import Kind
from corral.adapters.ag2 import (
    CorralEnvironment,
    DaytonaCodeEnvironment,
    DaytonaCodeExecutor,
    DaytonaEnvironment,
    DaytonaSandbox,
    DockerCodeEnvironment,
    DockerEnvironment,
    DockerSandbox,
    ExecResult,
    LocalSandbox,
    SandboxCodeTool,
    Variable,
    framework,
)
from corral.adapters.ag2.environments import EnvironmentBase
from support.dockerd import Daemon
from support.serving import ServedProcess

pytestmark = pytest.mark.needs_userns

CALLS: list[tuple[list[str], dict[str, Any], tuple[str, int]]] = [
    ([], {}, ("", 2)),
    (["echo", "a b", "'"], {}, ("a b '\n", 0)),
    (["sh", "-c", "echo out; exit 3"], {}, ("out\n", 3)),
    (["sh", "-c", "echo err >&2"], {}, ("err\n", 0)),
    (["sh", "-c", "echo [$FOO]"], {"env": {"FOO": "b är"}}, ("[b är]\n", 0)),
    (["sh", "-c", "echo [$FOO]"], {}, ("[]\n", 0)),
    (["pwd"], {}, ("/workspace\n", 0)),
    (["sh", "-c", "kill -9 $$"], {}, ("", 137)),
    (["printf", " a \n\n"], {}, (" a \n\n", 0)),
]


async def test_results(kind: Kind, environment: EnvironmentBase) -> None:
    async with environment.open() as sandbox:
        for argv, keywords, (output, exit_code) in CALLS:
            assert await sandbox.exec(argv, **keywords) == ExecResult(kind.shown(output), exit_code), argv
        assert (await sandbox.exec(["no-such-program"])).exit_code == 127
        assert isinstance(sandbox, framework.get("tools.sandbox", "Sandbox"))
        assert isinstance(sandbox, framework.get("tools.sandbox", "SandboxBase"))
        assert (sandbox.workdir, sandbox.host_workdir, sandbox.closed) == (PurePosixPath("/workspace"), None, False)


async def test_a_program_that_is_not_there_reads_as_with_ag2() -> None:
    async with LocalSandbox() as sandbox:
        result = await sandbox.exec(["no such program"])
        assert (result.output, result.exit_code) == ("Command not found: no such program", 127)


async def test_timeouts(kind: Kind) -> None:
    async with kind.make(timeout=30) as environment, environment.open() as sandbox:
        result = await sandbox.exec(["sh", "-c", "echo begun; sleep 60"], timeout=3)
        assert result.exit_code == 124
        assert result.output.startswith(kind.late)
        assert result.output.endswith(kind.shown("; it had printed:\nbegun\n"))
        assert (await sandbox.exec(["echo", "on"])).output == kind.shown("on\n")


async def test_files(kind: Kind, environment: EnvironmentBase) -> None:
    async with environment.open() as sandbox:
        await sandbox.put_file(PurePosixPath("new folder/it's.bin"), b"\xff\x00\r\n")
        assert await sandbox.get_file("new folder/it's.bin") == b"\xff\x00\r\n"
        assert (await sandbox.exec(["ls", "new folder"])).output == kind.shown("it's.bin\n")
        for _ in range(2):
            await sandbox.remove_file(PurePosixPath("new folder/it's.bin"))
        assert (await sandbox.exec(["ls", "new folder"])).output == ""
        for call, text in (
            (sandbox.put_file("/etc/x", b""), r"Absolute paths are not allowed in put_file/get_file: /etc/x"),
            (sandbox.remove_file("/etc/x"), r"Absolute paths are not allowed in remove_file: /etc/x"),
            (sandbox.put_file("../x", b""), r"Path escapes sandbox workdir: \.\./x"),
        ):
            with pytest.raises(ValueError, match=text):
                await call


async def test_one_sandbox_until_it_is_closed_and_then_another(kind: Kind) -> None:
    environment = kind.make(timeout=30)
    async with environment.open() as first:
        await first.put_file("a.txt", b"x")
    async with environment.open() as again:
        assert again is first
        assert (await again.exec(["cat", "a.txt"])).output == "x"
    await environment.aclose()
    await environment.aclose()
    assert first.closed
    calls: list[Callable[[], Awaitable[Any]]] = [
        lambda: first.exec(["ls"]),
        lambda: first.put_file("x", b""),
        lambda: first.remove_file("x"),
        first.__aenter__,
    ]
    for call in calls:
        with pytest.raises(RuntimeError) as caught:
            await call()
        assert str(caught.value) == kind.closed
    async with environment.open() as second:
        assert (await second.exec(["ls"])).output == ""
    await environment.aclose()


async def test_code(kind: Kind, environment: EnvironmentBase) -> None:
    runner = SandboxCodeTool(environment).environment
    for code, language, output, exit_code in (
        ("print(6 * 7)", "python", "42\n", 0),
        ("import sys; print('x'); sys.exit(3)", "python", "x\n", 3),
        ("for i in 1 2; do echo $i; done", "bash", "1\n2\n", 0),
        ("print('" + "a" * 200_000 + "'[:2])", "python", "aa\n", 0),
    ):
        result = await runner.run(code, language)
        assert (result.output, result.exit_code) == (kind.shown(output), exit_code), language
    result = await runner.run("console.log(1)", "javascript")
    text = "Language 'javascript' is not enabled. Available: ['python', 'bash']"
    assert (result.output, result.exit_code) == (text, 2)


# What is refused, and in which words.

BOTH = "Specify either `snapshot` or `image`, not both."
NAN = float("nan")
SECOND = "`timeout` must be >= 1 second."
DRIVEN = (
    "Variables are only resolvable when the sandbox is driven from an Agent "
    "(SandboxCodeTool / SandboxShellTool wrappers forward the active Context)."
)
LATER = "Variables are only resolvable when SandboxCodeTool is invoked through an Agent."


REFUSED: list[tuple[Callable[[], object], str]] = [
    (lambda: DaytonaEnvironment(snapshot="a", image="b", timeout=0), BOTH),
    (lambda: DaytonaEnvironment(timeout=0), SECOND),
    (lambda: DaytonaEnvironment(timeout=0.5), SECOND),
    (lambda: DaytonaCodeEnvironment(snapshot="a", image="b"), BOTH),
    (lambda: DaytonaCodeEnvironment(languages=("ocaml",)), "No LanguageRunner registered for language 'ocaml'."),
    (lambda: DockerEnvironment(timeout=0), SECOND),
    (lambda: DockerSandbox(timeout=0.9), SECOND),
    (lambda: DaytonaSandbox(client=None, params=None, timeout=0), SECOND),
    (lambda: LocalSandbox(timeout=0), "`timeout` must be > 0 seconds."),
    (lambda: CorralEnvironment(timeout=-1), "`timeout` must be > 0 seconds."),
    (lambda: CorralEnvironment(timeout=NAN), "`timeout` must be > 0 seconds."),
    (lambda: DaytonaEnvironment(timeout=NAN), SECOND),
    (lambda: DaytonaCodeExecutor(timeout=NAN), "Timeout must be greater than or equal to 1."),
    (lambda: DockerCodeEnvironment(timeout=0), SECOND),
]


@pytest.mark.parametrize("row", range(len(REFUSED)))
def test_what_is_refused_at_once(row: int) -> None:
    make, text = REFUSED[row]
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the whole text is compared
        make()
    assert str(caught.value) == text


def test_a_sandbox_that_stands_alone_takes_no_variables() -> None:
    for name, parameter, make in (
        ("Daytona", "client", lambda: DaytonaSandbox(client=Variable("c"), params=None)),
        ("Daytona", "params", lambda: DaytonaSandbox(client=None, params=Variable("p"))),
        ("Docker", "image", lambda: DockerSandbox(image=Variable("i"))),
    ):
        with pytest.raises(TypeError) as caught:
            make()
        assert str(caught.value) == (
            f"{name}Sandbox.{parameter} must be a concrete value; got Variable. "
            f"Wrap with {name}Environment to resolve Variables from a Context."
        )


class Context:
    def __init__(self, **variables: Any) -> None:
        self.variables = variables


LATE: list[tuple[Callable[[], EnvironmentBase], Any, type[Exception], str]] = [
    (
        lambda: DaytonaEnvironment(api_key=Variable("key"), image=Variable()),
        None,
        RuntimeError,
        f"Daytona credentials given as Variable but no Context available to resolve them. {LATER}",
    ),
    (
        lambda: DaytonaEnvironment(image=Variable("picture")),
        None,
        RuntimeError,
        f"Daytona `image` given as Variable but no Context available to resolve it. {LATER}",
    ),
    (
        lambda: DaytonaEnvironment(snapshot=Variable("s"), env_vars=Variable("e")),
        None,
        RuntimeError,
        f"Daytona `snapshot`, `env_vars` given as Variable but no Context available to resolve them. {LATER}",
    ),
    (
        lambda: DockerEnvironment(image=Variable("picture")),
        None,
        RuntimeError,
        f"Docker `image` given as Variable but no Context available to resolve it. {DRIVEN}",
    ),
    (
        lambda: DaytonaEnvironment(api_key=Variable("key")),
        Context(),
        KeyError,
        repr("Context variable 'key' not found and no default provided"),
    ),
    (
        lambda: DaytonaEnvironment(env_vars=Variable()),
        Context(),
        KeyError,
        repr("Context variable 'env_vars' not found and no default provided"),
    ),
    (lambda: DaytonaEnvironment(snapshot=Variable("s"), image="b"), Context(s="a"), ValueError, BOTH),
]


@pytest.mark.parametrize("row", range(len(LATE)))
async def test_what_is_refused_when_it_is_opened(row: int) -> None:
    make, context, error, text = LATE[row]
    with pytest.raises(error) as caught:
        async with make().open(context):
            pass
    assert str(caught.value) == text


VALUES: list[tuple[Any, Context, str]] = [
    (Variable("e"), Context(e={"A": "1"}), "[1]\n"),
    (Variable(), Context(env_vars={"A": "1"}), "[1]\n"),
    (Variable("e"), Context(e=None), "[]\n"),
    (Variable("e", default={"A": "2"}), Context(), "[2]\n"),
    (Variable("e", default_factory=lambda: {"A": "3"}), Context(), "[3]\n"),
    (Variable("e", default={"A": "2"}), Context(e={"A": "1"}), "[1]\n"),
]


@pytest.mark.parametrize("row", range(len(VALUES)))
async def test_where_a_variable_has_its_value_from(service: ServedProcess, row: int) -> None:
    variable, context, output = VALUES[row]
    before = dict(context.variables)
    async with DaytonaEnvironment(env_vars=variable) as environment, environment.open(context) as sandbox:
        assert (await sandbox.exec(["sh", "-c", "echo [$A]"])).output == output
    assert context.variables == before  # a default is not written back


# The first generation.


FIRST: list[tuple[type, dict[str, Any]]] = [
    (
        DaytonaCodeEnvironment,
        {
            "api_key": None,
            "api_url": None,
            "target": None,
            "snapshot": None,
            "image": None,
            "env_vars": None,
            "resources": None,
            "timeout": 60,
            "languages": ("python", "bash", "javascript", "typescript"),
        },
    ),
    (
        DockerCodeEnvironment,
        {
            "image": "python:3.12-slim",
            "env_vars": None,
            "timeout": 60,
            "network_mode": "none",
            "mem_limit": "512m",
            "cpu_quota": None,
            "user": None,
            "auto_remove": True,
            "languages": ("python", "bash"),
        },
    ),
]


@pytest.mark.parametrize(("kind_of", "parameters"), FIRST)
def test_signatures_of_the_first_generation(kind_of: type, parameters: dict[str, Any]) -> None:
    found = inspect.signature(kind_of).parameters
    assert {name: one.default for name, one in found.items()} == parameters
    assert {one.kind for one in found.values()} == {inspect.Parameter.KEYWORD_ONLY}


@pytest.mark.needs_docker
@pytest.mark.timeout(240)
async def test_containers_of_the_first_generation(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORRAL_DOCKER_HOST", daemon.host)
    async with DockerCodeEnvironment(image=daemon.image) as environment:
        result = await environment.run("pwd; echo", "bash")
        assert (result.output, result.exit_code) == ("/workspace\n\n", 0)
    async with DockerCodeEnvironment(image=Variable("picture")) as later:
        with pytest.raises(RuntimeError) as caught:
            await later.run("pwd", "bash")
    assert str(caught.value) == f"Docker `image` given as Variable but no Context available to resolve it. {LATER}"


async def test_code_environment_of_the_first_generation(service: ServedProcess) -> None:
    environment = DaytonaCodeEnvironment(timeout=4, env_vars={"A": "1"})
    assert environment.supported_languages == ("python", "bash", "javascript", "typescript")
    result = await environment.run("import os; print(os.environ['A'], os.getcwd())", "python")
    assert (result.output, result.exit_code) == ("1 /home/daytona\n", 0)
    result = await environment.run("echo begun; sleep 60", "bash")
    assert result.exit_code == 124
    assert result.output.startswith("Execution timed out: ")
    assert "begun" in result.output
    await environment.aclose()
    await environment.aclose()
    with pytest.raises(RuntimeError) as caught:
        await environment.run("print(1)", "python")
    assert str(caught.value) == "DaytonaCodeEnvironment has been closed."


async def test_a_language_that_is_disabled_makes_no_sandbox(service: ServedProcess, living: Any) -> None:
    before = living()
    async with DaytonaCodeEnvironment(languages=("python",)) as environment:
        result = await environment.run("ls", "bash")
        assert (result.output, result.exit_code) == ("Language 'bash' is not enabled. Available: ['python']", 2)
        assert living() == before


async def test_a_service_that_has_no_such_image_says_so(service: ServedProcess) -> None:
    from daytona import Image

    for image, text in (
        (Image.debian_slim("3.12").pip_install("requests"), "building images"),
        ("python:3.12", "does not pull or build images"),
    ):
        async with DaytonaEnvironment(image=image) as environment:
            with pytest.raises(NotImplementedError, match=text):
                async with environment.open():
                    pass
