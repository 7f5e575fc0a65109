"""`SandboxCodeExecutor`: AG2's classic code executor, on any backend.

    executor = SandboxCodeExecutor(timeout=30)                     # the embedded engine
    agent = ConversableAgent("runner", code_execution_config={"executor": executor})

The constructor creates the sandbox. It lives until `delete()`, the end of the `with` block or of the program, and keeps
its files between calls. Each block is a fresh process.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self, Unpack

from corral.adapters.ag2.coding import BlockResult, MarkdownCodeExtractor, SandboxCodeResult, with_blocks
from corral.adapters.ag2.sandbox import is_not_installed, with_remark
from corral.base.needs import describe_needs
from corral.client.sync import Sandbox
from corral.errors import CorralError, SandboxClosedError
from corral.languages import find_language, language_names
from corral.protocol import Backend
from corral.results import NOT_FOUND_EXIT_CODE
from corral.spec import SpecOptions
from corral.tools.tool import MENDABLE

log = logging.getLogger("corral.ag2")


class CodeExecutorBase(ABC):
    """Runs blocks in order, in one sandbox, until one fails."""

    SUPPORTED_LANGUAGES: ClassVar[list[str]] = ["python", "bash", "sh", "javascript", "typescript"]
    _LANG_ALIASES: ClassVar[dict[str, str]] = {"py": "python", "js": "javascript", "ts": "typescript", "shell": "bash"}

    result_class: ClassVar[type[SandboxCodeResult]] = SandboxCodeResult

    _timeout: float

    def __init__(self) -> None:
        self._box: Sandbox | None = None
        """It ends by itself when the last reference is dropped, or when the program ends."""
        self._lock = threading.RLock()

    # What the two executors do differently.

    @abstractmethod
    def _open(self) -> Sandbox:
        """Create a sandbox."""

    @abstractmethod
    def _failed(self, language: str, error: Exception) -> BlockResult:
        """The result for a failure of the sandbox. Raises: the error, if it is not a result."""

    @abstractmethod
    def _timed_out(self, block: BlockResult) -> BlockResult:
        """The result of a block that timed out, with a remark about it in its output."""

    def _join(self, done: Sequence[BlockResult]) -> str:
        """The output of all blocks together."""
        return "\n".join(block.output for block in done)

    # AG2's protocol.

    @property
    def timeout(self) -> float:
        """Seconds for each block."""
        return self._timeout

    @property
    def code_extractor(self) -> MarkdownCodeExtractor:
        """Finds the code blocks of a message."""
        return MarkdownCodeExtractor()

    @property
    def sandbox(self) -> Sandbox:
        """The sandbox, for files and everything else. Raises: SandboxClosedError after `delete`."""
        if self._box is None:
            raise SandboxClosedError("the executor's sandbox was deleted", hint="restart() creates a new one")
        return self._box

    @property
    def sandbox_id(self) -> str | None:
        """The id of the sandbox; None after `delete`."""
        return self._box.id if self._box is not None else None

    def execute_code_blocks(self, code_blocks: Sequence[Any]) -> SandboxCodeResult:
        """Run blocks in order until one fails. Raises: SandboxClosedError after `delete`."""
        box = self.sandbox
        done: list[BlockResult] = []
        for block in code_blocks:
            done.append(self._run(box, block.code, block.language))
            if not done[-1].ok:
                break
        return self._end(done)

    def _run(self, box: Sandbox, code: str, language: str) -> BlockResult:
        name = self._normalise(language)
        if name not in self.SUPPORTED_LANGUAGES:
            text = f"Unsupported language: {language!r}. Supported languages: {', '.join(self.SUPPORTED_LANGUAGES)}"
            return BlockResult(name, 1, text)
        try:
            result = box.run_code(code, name, timeout=self._timeout)
        except Exception as error:  # noqa: BLE001 - which of them are results is the executor's own rule
            if is_not_installed(error):
                return BlockResult(name, NOT_FOUND_EXIT_CODE, str(error), error=error)
            return self._failed(name, error)
        output = with_remark(result.output, describe_needs(result, box.spec.network, door="model"))
        block = BlockResult(name, result.exit_code, output, result)
        return self._timed_out(block) if block.timed_out else block

    def _end(self, done: Sequence[BlockResult]) -> SandboxCodeResult:
        exit_code = done[-1].exit_code if done else 0
        result = self.result_class(exit_code=exit_code, output=self._join(done), sandbox_id=self.sandbox_id)
        return with_blocks(result, done)

    def _normalise(self, language: str) -> str:
        name = language.lower().strip()
        return self._LANG_ALIASES.get(name, name)

    def restart(self) -> None:
        """Replace the sandbox with a new one, also after `delete`."""
        with self._lock:
            self.delete()
            self._box = self._open()

    def delete(self) -> None:
        """Delete the sandbox. Idempotent; a failure is logged with the sandbox's id, since it may cost money."""
        with self._lock:
            box, self._box = self._box, None
        if box is None:
            return
        try:
            box.kill()
        except Exception as error:  # noqa: BLE001 - at the end of a program there is no caller to catch it
            log.warning("the sandbox %s could not be deleted and may still be running: %s", box.id, error)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.delete()

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        """Agents copy their settings; all copies share one sandbox."""
        return self


class SandboxCodeExecutor(CodeExecutorBase):
    """AG2's executor on any backend.

    Results have AG2's fields and `blocks`, one `BlockResult` for each block that was run. The output of earlier blocks
    is kept when a later one fails. A block that times out ends with exit code 124 and what it had printed. A sandbox
    that is gone raises `SandboxGoneError`: it is not output for a model.

    `languages` are the supported ones, by the names of `corral.languages`; with `check_first=True` the languages of all
    blocks are checked before the first one runs. `backend` and all other keywords are those of `corral.Sandbox`.
    """

    def __init__(
        self,
        *,
        timeout: float = 60,
        backend: str | Backend = "embedded",
        languages: Sequence[str] | None = None,
        aliases: Mapping[str, str] | None = None,
        check_first: bool = False,
        **spec_options: Unpack[SpecOptions],
    ) -> None:
        super().__init__()
        if isinstance(timeout, bool) or not timeout > 0:
            raise ValueError("timeout must be above 0 seconds.")
        self._timeout = timeout
        self._backend = backend
        self._spec_options = spec_options
        self._check_first = check_first
        known = [find_language(name).name for name in languages] if languages is not None else language_names()
        self.SUPPORTED_LANGUAGES = known  # type: ignore[misc]  # AG2 reads it from the object as from the class
        self._aliases = {name.lower().strip(): known for name, known in (aliases or {}).items()}
        self._box = self._open()

    def _open(self) -> Sandbox:
        return Sandbox(backend=self._backend, **self._spec_options)

    def _normalise(self, language: str) -> str:
        name = language.lower().strip()
        name = self._aliases.get(name, name)
        try:
            return find_language(name).name
        except CorralError:
            return name

    def execute_code_blocks(self, code_blocks: Sequence[Any]) -> SandboxCodeResult:
        """Run blocks in order until one fails; `output` is that of all of them. Raises: SandboxGoneError."""
        if self._check_first:
            for block in code_blocks:
                if self._normalise(block.language) not in self.SUPPORTED_LANGUAGES:
                    return self._end([self._run(self.sandbox, "", block.language)])
        return super().execute_code_blocks(code_blocks)

    def _failed(self, language: str, error: Exception) -> BlockResult:
        if isinstance(error, MENDABLE):
            return BlockResult(language, 1, f"Error executing code block: {error}", error=error)
        raise error

    def _timed_out(self, block: BlockResult) -> BlockResult:
        remark = f"Execution timed out after {self._timeout:g} s"
        output = f"{block.output.rstrip()}\n{remark}" if block.output.strip() else remark
        return BlockResult(block.language, block.exit_code, output, block.result)
