"""`DaytonaCodeExecutor`: the executor of ag2 0.12 to 0.14, with the same signature, messages and rules.

It runs on the `daytona` backend, so the service deletes its sandbox even if this program is killed.
"""

from __future__ import annotations

import importlib.util
import time
import uuid
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from corral.adapters.ag2.coding import BlockResult, DaytonaCodeResult
from corral.adapters.ag2.executor import CodeExecutorBase
from corral.adapters.ag2.sandbox import describe_timeout
from corral.adapters.ag2.service import DaytonaSandboxResources, ServiceBackend, read_limits, resources_of
from corral.client.sync import Sandbox
from corral.concurrency.portal import get_portal
from corral.errors import CorralError, RateLimitedError, SpecError
from corral.protocol import Backend
from corral.spec import SpecOptions

_NAME_SECONDS = 30.0
"""A service deletes asynchronously: for this long the name of a deleted sandbox may still be taken."""


class DaytonaCodeExecutor(CodeExecutorBase):
    """Runs code blocks in a Daytona sandbox, which the constructor creates.

    `api_key`, `api_url` and `target` default to DAYTONA_API_KEY, DAYTONA_API_URL and DAYTONA_TARGET.
    Results have the fields of ag2's; their attribute `blocks` says more about each block.
    """

    result_class = DaytonaCodeResult

    def __init__(
        self,
        api_key: str | None = None,
        api_url: str | None = None,
        target: str | None = None,
        timeout: float = 60,
        snapshot: str | None = None,
        image: Any = None,
        name: str | None = None,
        env_vars: Mapping[str, str] | None = None,
        resources: DaytonaSandboxResources | Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if importlib.util.find_spec("daytona") is None:
            raise ImportError(
                "Missing dependencies for DaytonaCodeExecutor. Please install with: pip install 'corral[ag2,daytona]'"
            )
        if not timeout >= 1:
            raise ValueError("Timeout must be greater than or equal to 1.")
        if snapshot is not None and image is not None:
            raise ValueError(
                "Cannot specify both 'snapshot' and 'image'. Use 'snapshot' for a named Daytona snapshot, or 'image' "
                "for a custom Docker image."
            )
        self._timeout = timeout
        self._options: dict[str, Any] = {
            "api_key": api_key,
            "api_url": api_url,
            "target": target,
            "limits": read_limits(resources),
            # Not in the spec: the service allows longer and freer names than we do.
            "fields": {"name": name or f"ag2-{uuid.uuid4().hex[:8]}"},
        }
        self._backend: Backend | None = None
        spec_options: SpecOptions = {"env": dict(env_vars or {})}
        if snapshot is not None:
            spec_options["snapshot"] = snapshot
        elif image is not None:
            spec_options["image"] = image
            spec_options["resources"] = resources_of(resources)
        self._spec_options = spec_options
        self._box = self._open()

    def _open(self) -> Sandbox:
        try:
            if self._backend is None:
                self._backend = ServiceBackend(**self._options)
                weakref.finalize(self, _close_soon, self._backend).atexit = False  # the backend closes itself at exit
            return Sandbox(backend=self._backend, **self._spec_options)
        except RateLimitedError as error:
            raise RuntimeError(f"Daytona rate limit exceeded during sandbox creation: {error}") from error
        except Exception as error:
            if _is_late(error):
                raise RuntimeError(f"Daytona sandbox creation timed out: {error}") from error
            raise RuntimeError(f"Failed to create Daytona sandbox: {error}") from error

    def delete(self) -> None:
        """Delete the sandbox and close the connection. Idempotent; a failure is logged with the sandbox's id."""
        super().delete()
        if self._backend is not None:
            get_portal().run(self._backend.aclose())

    def restart(self) -> None:
        """Replace the sandbox with a new one of the same name, also after `delete`."""
        with self._lock:
            self.delete()
            deadline = time.monotonic() + _NAME_SECONDS
            while True:
                try:
                    self._box = self._open()
                except RuntimeError as error:
                    if not _is_taken(error) or time.monotonic() >= deadline:
                        raise
                    time.sleep(0.5)
                else:
                    return

    def _failed(self, language: str, error: Exception) -> BlockResult:
        prefix = "Error executing code block"
        if isinstance(error, RateLimitedError):
            prefix = "Daytona rate limit exceeded"
        elif _is_late(error):
            prefix = "Execution timed out"
        elif isinstance(error, CorralError):
            prefix = "Daytona error"
        return BlockResult(language, 1, f"{prefix}: {error}", error=error)

    def _timed_out(self, block: BlockResult) -> BlockResult:
        output = describe_timeout(f"Execution timed out: no end after {self._timeout:g} seconds", block.output)
        return BlockResult(block.language, 1, output, block.result)

    def _join(self, done: Sequence[BlockResult]) -> str:
        return super()._join(done if not done or done[-1].ok else done[-1:])


def _close_soon(backend: Backend) -> None:
    """Close the backend of a forgotten executor. Not waited for: the garbage collector may run on any thread."""
    get_portal().run_soon(backend.aclose())


def _is_late(error: BaseException | None) -> bool:
    """True if the error, or one of its causes, is that the service did not answer in time."""
    while error is not None:
        if isinstance(error, TimeoutError) or type(error).__name__ == "DaytonaTimeoutError":
            return True
        error = error.__cause__
    return False


def _is_taken(error: BaseException) -> bool:
    return isinstance(error.__cause__, SpecError) and "name" in str(error.__cause__).lower()
