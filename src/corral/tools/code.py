"""`CodeTool`: a model gives source code, and gets its output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from corral.client.sandbox import AsyncSandbox
from corral.errors import BackendUnavailableError, UnknownLanguageError
from corral.languages import find_language
from corral.tools.render import DEFAULT_MAX_CHARS, ToolText, quote, render_error, render_result
from corral.tools.schema import ArgumentsError, Parameter
from corral.tools.tool import Source, Tool, timeout_parameter

DEFAULT_LANGUAGES = ("python", "bash", "javascript", "typescript")
DEFAULT_TIMEOUT_SECONDS = 60.0
MAX_TIMEOUT_SECONDS = 600.0


class CodeTool(Tool):
    """Runs snippets, each in a new process; files stay between them.

    A model may use any alias of a language. If the sandbox has no runtime for it, the model gets an error text.
    """

    def __init__(
        self,
        environment: Source,
        *,
        languages: Sequence[str] = DEFAULT_LANGUAGES,
        name: str = "run_code",
        description: str | None = None,
        timeout: float = DEFAULT_TIMEOUT_SECONDS,
        max_timeout: float = MAX_TIMEOUT_SECONDS,
        max_chars: int = DEFAULT_MAX_CHARS,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> None:
        if not languages:
            raise ValueError("languages is empty: a code tool needs at least one")
        # The canonical names; an unknown one raises here, before a model sees the tool.
        self.languages = tuple(dict.fromkeys(find_language(language).name for language in languages))
        self._timeout = min(timeout, max_timeout)
        self._env = dict(env or {})
        self._cwd = cwd
        listed = ", ".join(self.languages)
        super().__init__(
            environment,
            name=name,
            description=description
            or f"Execute code in a sandboxed environment. Supported languages: {listed}. Each call is a new process; "
            "files stay for later calls. Print what you want to see.",
            parameters=[
                Parameter("code", "string", "the complete source code", required=True),
                Parameter(
                    "language",
                    "string",
                    f"one of {listed}",
                    required=len(self.languages) > 1,
                    default=None if len(self.languages) > 1 else self.languages[0],
                    choices=self.languages,
                ),
                timeout_parameter(self._timeout, max_timeout),
            ],
            max_chars=max_chars,
        )

    def judge(self, values: dict[str, Any]) -> dict[str, Any]:
        given = str(values["language"])
        try:
            found = find_language(given).name
        except UnknownLanguageError:
            found = None
        if found not in self.languages:
            raise ArgumentsError(f"language {quote(given)!r} is not enabled; available: {', '.join(self.languages)}")
        return {**values, "language": found}

    async def run(self, box: AsyncSandbox, values: Mapping[str, Any]) -> ToolText:
        try:
            result = await box.run_code(
                values["code"],
                values["language"],
                env=self._env,
                cwd=self._cwd,
                timeout=values["timeout_seconds"] or self._timeout,
            )
        except BackendUnavailableError as error:
            return render_error(f"{error}; use another language", code=error.code)
        return render_result(result, network=box.spec.network, max_chars=self.max_chars)
