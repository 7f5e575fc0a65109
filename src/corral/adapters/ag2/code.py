"""AG2's `CodeEnvironment`: `await environment.run(code, language, context=…)`, on Corral's `run_code`.

Variables are looked up on every run, so two tenants have two sandboxes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from corral.adapters.ag2 import framework
from corral.adapters.ag2.environments import DaytonaEnvironment, DockerEnvironment
from corral.adapters.ag2.sandbox import Adapted, ClosedError, Closing, with_remark
from corral.adapters.ag2.service import DaytonaResources
from corral.adapters.ag2.words import DOCKER_CODE
from corral.errors import CorralError
from corral.languages import find_language
from corral.results import CodeResult
from corral.spec import HOME

_DISABLED_EXIT_CODE = 2


class CodeRunner:
    """Runs code in the sandboxes of an environment, or in a given one. `result` is the last complete `CodeResult`."""

    def __init__(self, environment: Adapted, *, languages: Sequence[str] = ("python", "bash")) -> None:
        for language in languages:
            try:
                find_language(language)
            except CorralError as error:
                raise ValueError(f"No LanguageRunner registered for language {language!r}.") from error
        self._environment = environment
        self._languages = tuple(languages)
        self.result: CodeResult | None = None

    @property
    def supported_languages(self) -> tuple[str, ...]:
        """The languages that it runs."""
        return self._languages

    @property
    def max_output(self) -> int | None:
        """How many characters of output it returns; None: everything that was kept."""
        return self._environment.max_output

    async def run(self, code: str, language: str, *, context: Any = None) -> Any:
        """Run a snippet in a fresh process; returns AG2's `CodeRunResult`."""
        if language not in self._languages:
            text = f"Language {language!r} is not enabled. Available: {list(self._languages)}"
            return framework.CodeRunResult(output=text, exit_code=_DISABLED_EXIT_CODE)
        timeout = self._environment.timeout
        ran = await self._environment.run_in_box(
            lambda box: box.run_code(code, language, timeout=timeout), context=context
        )
        self.result = cast("CodeResult | None", ran.result) or self.result
        return framework.CodeRunResult(output=with_remark(ran.output, ran.remark), exit_code=ran.exit_code)


class CodeEnvironmentBase(CodeRunner, Closing):
    """A first-generation environment: it runs the code itself, and can't be used after `aclose`."""

    _closed = False

    async def run(self, code: str, language: str, *, context: Any = None) -> Any:
        """Run a snippet; returns AG2's `CodeRunResult`. Raises: ClosedError, a RuntimeError, after `aclose`."""
        if self._closed:
            raise ClosedError(f"{type(self).__name__} has been closed.")
        return await super().run(code, language, context=context)

    async def aclose(self) -> None:
        """Delete every sandbox. Idempotent. Raises: LeftBehindError."""
        self._closed = True
        await self._environment.aclose()


class DaytonaCodeEnvironment(CodeEnvironmentBase):
    """Code in sandboxes of a Daytona service. Keywords as `DaytonaEnvironment`; it runs in the sandbox's home."""

    def __init__(
        self,
        *,
        api_key: Any = None,
        api_url: Any = None,
        target: Any = None,
        snapshot: Any = None,
        image: Any = None,
        env_vars: Any = None,
        resources: DaytonaResources | Mapping[str, Any] | None = None,
        timeout: float = 60,
        languages: Sequence[str] = ("python", "bash", "javascript", "typescript"),
    ) -> None:
        environment = DaytonaEnvironment(
            api_key=api_key,
            api_url=api_url,
            target=target,
            snapshot=snapshot,
            image=image,
            env_vars=env_vars,
            resources=resources,
            timeout=timeout,
            workdir=HOME,
        )
        super().__init__(environment, languages=languages)


class DockerCodeEnvironment(CodeEnvironmentBase):
    """Code in Docker containers. Keywords as `DockerEnvironment`."""

    def __init__(
        self,
        *,
        image: Any = "python:3.12-slim",
        env_vars: Any = None,
        timeout: float = 60,
        network_mode: Any = "none",
        mem_limit: int | str | None = "512m",
        cpu_quota: int | None = None,
        user: str | None = None,
        auto_remove: bool = True,
        languages: Sequence[str] = ("python", "bash"),
    ) -> None:
        environment = _FirstDocker(
            image=image,
            env_vars=env_vars,
            timeout=timeout,
            network_mode=network_mode,
            mem_limit=mem_limit,
            cpu_quota=cpu_quota,
            user=user,
            auto_remove=auto_remove,
        )
        super().__init__(environment, languages=languages)


class _FirstDocker(DockerEnvironment):
    """Does not strip the output."""

    words = DOCKER_CODE
