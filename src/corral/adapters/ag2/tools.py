"""`SandboxCodeTool` and `SandboxShellTool` for AG2's agents: the same names and texts as AG2's own, on Corral.

This module needs AG2. `corral.tools` has the same tools without AG2.
"""

# No postponed annotations here: AG2 reads them from the functions that a model calls, and their names are local.

from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath
from typing import Any

from corral.adapters.ag2 import framework
from corral.adapters.ag2.code import CodeRunner
from corral.adapters.ag2.environments import CorralEnvironment, EnvironmentBase, LocalEnvironment
from corral.adapters.ag2.sandbox import AdaptedSandbox, with_remark
from corral.environment.environment import Environment
from corral.errors import PolicyError
from corral.tools.render import OUTPUT_HINT, bound, make_harmless
from corral.tools.shell import ShellCapabilities, ShellTool

_Tool: Any = framework.get("tools.tool", "Tool")
_Context: Any = framework.get("annotations", "Context")
_tool: Any = framework.get("tools.final", "tool")
_Language: Any = framework.CodeLanguage

_MAX_CHARS = 100_000
"""As much as AG2's `LocalSandbox` returns, for every environment: more is of no use to a model."""
_REMARK_CHARS = 500
"""Room for remarks about the output."""

_SHELL = "Execute a shell command in the working directory: {workdir}"
_RESTRICTED = (
    "Execute a command in the working directory: {workdir}. It runs without a shell, "
    "so pipes, redirects, chaining, globs and variables are not available."
)


class _Wrapped(_Tool):  # type: ignore[misc]  # known at run time only
    """A function that a model calls, as AG2's `Tool`."""

    def __init__(self, function: Any, *, name: str, description: str, middleware: Iterable[Any]) -> None:
        self._tool = _tool(function, name=name, description=description, middleware=middleware)
        self.name = name

    async def schemas(self, context: Any) -> Any:
        """The schemas that a model sees."""
        return await self._tool.schemas(context)

    def register(self, stack: Any, context: Any, *, middleware: Iterable[Any] = ()) -> None:
        """Called by AG2: register the tool for the calls of a model."""
        self._tool.register(stack, context, middleware=middleware)


class SandboxCodeTool(_Wrapped):
    """`run_code(code, language)` for a model.

    `environment` is one of ours, one of AG2's own, a `corral.Environment`, a sandbox, or any
    `CodeEnvironment`: a thing with `supported_languages` and `run(code, language, context=)`.
    """

    def __init__(
        self,
        environment: Any,
        name: str = "run_code",  # positional too, as in ag2 0.12 and 0.13
        *,
        languages: Sequence[str] = ("python", "bash"),
        runners: Any = None,
        description: str = "Execute code in a sandboxed environment. Supported languages: {languages}.",
        middleware: Iterable[Any] = (),
    ) -> None:
        env = _code_environment(environment, tuple(languages), runners)

        async def run_code(code: str, language: _Language, ctx: _Context) -> str:
            result = await env.run(code, language, context=ctx)
            return fit(with_exit_code(result.output, result.exit_code), env)

        self._env = env
        text = description.format(languages=", ".join(env.supported_languages))
        super().__init__(run_code, name=name, description=text, middleware=middleware)

    @property
    def environment(self) -> Any:
        """The environment that runs the code."""
        return self._env


def _code_environment(environment: Any, languages: tuple[str, ...], runners: Any) -> Any:
    if isinstance(environment, Environment):
        environment = _Given(environment)
    ours = isinstance(environment, EnvironmentBase | AdaptedSandbox)
    if ours and runners is None:
        return CodeRunner(environment, languages=languages)
    if ours or isinstance(environment, framework.get("tools.sandbox", "SandboxFactory")):
        return framework.get("tools.sandbox", "CodeAdapter")(environment, languages=languages, runners=runners)
    if runners is not None:
        raise ValueError(
            "`runners` only applies when `environment` is a backend (SandboxFactory); configure runners on your "
            "CodeAdapter / CodeEnvironment instead."
        )
    return environment


class _Given(CorralEnvironment):
    """A `corral.Environment` with another owner."""

    def __init__(self, environment: Environment) -> None:
        super().__init__()
        self.environment = environment


class SandboxShellTool(_Wrapped):
    """`run_shell_command(command)` for a model.

    With `allowed`, `blocked`, `ignore` or `readonly` a command is checked word by word and run without a shell. On
    backends with views the kernel enforces `ignore` and `readonly` too, for everything that a command starts;
    `capabilities()` says so. The default environment is a `LocalEnvironment`, which is isolated here.
    """

    def __init__(
        self,
        environment: Any = None,
        *,
        allowed: Sequence[str] | None = None,
        blocked: Sequence[str] | None = None,
        ignore: Sequence[str] | None = None,
        readonly: bool = False,
        name: str = "run_shell_command",
        description: str | None = None,
        middleware: Iterable[Any] = (),
    ) -> None:
        backend = environment if environment is not None else LocalEnvironment()
        if isinstance(backend, Environment):
            backend = _Given(backend)
        rules = {"allowed": allowed, "blocked": blocked, "ignore": ignore, "readonly": readonly}
        restricted = readonly or any(rule is not None for rule in (allowed, blocked, ignore))
        adapter: Any
        if isinstance(backend, EnvironmentBase | AdaptedSandbox):
            adapter = _OwnShell(backend, rules)
        else:
            adapter = framework.get("tools.sandbox.adapter", "ShellAdapter")(backend, **rules)

        async def run_shell_command(command: str, ctx: _Context) -> str:
            text: str = await adapter.run(command, context=ctx)
            return fit(text, backend, getattr(adapter, "hint", OUTPUT_HINT))

        self._adapter = adapter
        self._restricted = restricted
        text = description if description is not None else _RESTRICTED if restricted else _SHELL
        super().__init__(
            run_shell_command, name=name, description=text.format(workdir=adapter.workdir), middleware=middleware
        )

    @property
    def workdir(self) -> PurePosixPath:
        """The working folder of commands."""
        found: PurePosixPath = self._adapter.workdir
        return found

    async def capabilities(self, context: Any = None) -> ShellCapabilities:
        """How the rules are enforced where commands run."""
        if isinstance(self._adapter, _OwnShell):
            return await self._adapter.shell.capabilities(context)
        note = "argv only: on this backend, a program that starts others can bypass the rules"
        held = self._restricted
        return ShellCapabilities(restricted=held, argv=held, kernel=False, notes=(note,) * held)


class _OwnShell:
    """Our shell tool, with AG2's messages."""

    def __init__(self, environment: EnvironmentBase | AdaptedSandbox, rules: dict[str, Any]) -> None:
        self._environment = environment
        own = environment.environment if isinstance(environment, EnvironmentBase) else _Opening(environment)
        self.shell = ShellTool(own, **rules)

    @property
    def workdir(self) -> PurePosixPath:
        return self._environment.workdir

    @property
    def hint(self) -> str:
        return self.shell.hint

    async def run(self, command: str, *, context: Any = None) -> str:
        try:
            if self.shell.policy.restricted:
                self.shell.policy.check(command, workdir=str(self.workdir))  # before a sandbox is created
            timeout = self._environment.timeout
            # AG2's own shell runs an empty command, which does nothing.
            text = command if command.strip() or self.shell.policy.restricted else ":"
            ran = await self._environment.run_in_box(
                lambda box: self.shell.execute(box, text, timeout=timeout), context=context
            )
        except PolicyError as error:
            return error.message
        if isinstance(self._environment, AdaptedSandbox):
            self._environment.result = ran.result or self._environment.result
        return with_remark(with_exit_code(ran.output, ran.exit_code), ran.remark)


class _Opening:
    """A sandbox as a source for our tools."""

    def __init__(self, sandbox: AdaptedSandbox) -> None:
        self.open = sandbox.open_box
        self.workdir = str(sandbox.workdir)


def with_exit_code(output: str, exit_code: int) -> str:
    """The text for a model: the output, and the exit code if it is not 0."""
    if exit_code == 0:
        return output
    suffix = f"[exit code: {exit_code}]"
    return f"{output}\n{suffix}" if output else suffix


def fit(text: str, environment: Any, hint: str = OUTPUT_HINT) -> str:
    """The text, bounded and made harmless. The environment's own bound applies if it is wider."""
    own = getattr(environment, "max_output", None) or 0
    return bound(make_harmless(text), max_chars=max(_MAX_CHARS, own + _REMARK_CHARS), hint=hint)[0]
