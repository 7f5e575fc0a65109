"""AG2's `CodeEnvironment`: `await environment.run(code, language, context=…)`, by our own `run_code`.

A snippet travels as a file, never in an argument, and Variables are looked up on every run: two tenants have two
sandboxes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from corral.adapters.ag2 import framework
from corral.adapters.ag2.environments import DaytonaEnvironment, DockerEnvironment, EnvironmentBase
from corral.adapters.ag2.sandbox import AdaptedSandbox, ClosedError, cut, told_late
from corral.errors import BackendUnavailableError, CorralError, SandboxError
from corral.languages import find_language
from corral.results import NOT_FOUND_EXIT_CODE, CodeResult

_DISABLED_EXIT_CODE = 2


class CodeRunner:
    """Runs code in the sandboxes of an environment, or in the one given. `result` is the last whole `CodeResult`."""

    def __init__(
        self, environment: EnvironmentBase | AdaptedSandbox, *, languages: Sequence[str] = ("python", "bash")
    ) -> None:
        for language in languages:
            if not _is_known(language):
                raise ValueError(f"No LanguageRunner registered for language {language!r}.")
        self._environment = environment
        self._languages = tuple(languages)
        self.result: CodeResult | None = None

    @property
    def supported_languages(self) -> tuple[str, ...]:
        """What it runs."""
        return self._languages

    async def run(self, code: str, language: str, *, context: Any = None) -> Any:
        """Run a snippet in a fresh process; gives AG2's `CodeRunResult`."""
        if language not in self._languages:
            text = f"Language {language!r} is not enabled. Available: {list(self._languages)}"
            return make_run_result(text, _DISABLED_EXIT_CODE)
        environment = self._environment
        async with environment.open_box(context) as box:
            try:
                result = await box.run_code(code, language, timeout=environment.timeout)
            except SandboxError:
                raise
            except CorralError as error:
                if isinstance(error, BackendUnavailableError) and error.op == "run_code":
                    return make_run_result(str(error), NOT_FOUND_EXIT_CODE)  # nothing inside runs that language
                told = environment.words.failed(error)
                if told is None:
                    raise
                return make_run_result(told, 1)
        self.result = result
        output = cut(result.output, environment.max_output)
        if result.timed_out:
            output = told_late(environment.words.timed_out(environment.timeout), output)
        return make_run_result(output, result.exit_code)


class CodeEnvironmentBase(CodeRunner):
    """A first-generation environment: it is itself what runs the code, and is closed for good."""

    def __init__(self, environment: EnvironmentBase, *, languages: Sequence[str]) -> None:
        super().__init__(environment, languages=languages)
        self._owned = environment
        self._closed = False

    async def run(self, code: str, language: str, *, context: Any = None) -> Any:
        """See `CodeRunner`. Raises: ClosedError, a RuntimeError, after `aclose`."""
        if self._closed:
            raise ClosedError(f"{type(self).__name__} has been closed.")
        return await super().run(code, language, context=context)

    async def aclose(self) -> None:
        """Delete every sandbox. Idempotent. Raises: LeftBehindError."""
        self._closed = True
        await self._owned.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        return self


class DaytonaCodeEnvironment(CodeEnvironmentBase):
    """Code in sandboxes of a Daytona service. Keywords as `DaytonaEnvironment`, and `languages`."""

    def __init__(
        self, *, languages: Sequence[str] = ("python", "bash", "javascript", "typescript"), **wishes: Any
    ) -> None:
        super().__init__(DaytonaEnvironment(**wishes), languages=languages)


class DockerCodeEnvironment(CodeEnvironmentBase):
    """Code in Docker containers. Keywords as `DockerEnvironment`, and `languages`."""

    def __init__(
        self, image: Any = "python:3.12-slim", *, languages: Sequence[str] = ("python", "bash"), **wishes: Any
    ) -> None:
        super().__init__(DockerEnvironment(image=image, **wishes), languages=languages)


def make_run_result(output: str, exit_code: int) -> Any:
    """AG2's `CodeRunResult`."""
    return framework.get("tools.code.environment.base", "CodeRunResult")(output=output, exit_code=exit_code)


def _is_known(language: str) -> bool:
    try:
        find_language(language)
    except CorralError:
        return False
    return True
