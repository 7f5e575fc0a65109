"""CorralSandbox: `AsyncCorralSandbox` for plain code, run on the portal; nothing is written twice."""

from __future__ import annotations

from types import EllipsisType
from typing import Any, ClassVar, Self, Unpack

from corral.adapters.pydantic_ai.results import (
    BackgroundHandle,
    BackgroundOutput,
    BackgroundProcessInfo,
    EditResult,
    ExecuteResponse,
    FileInfo,
    GrepMatch,
    WriteResult,
)
from corral.adapters.pydantic_ai.sandbox import AsyncCorralSandbox
from corral.base.docstrings import Documented
from corral.client.sandbox import AsyncSandbox
from corral.client.sync import Sandbox
from corral.client.wishes import Wishes
from corral.concurrency.portal import get_portal
from corral.protocol import Backend
from corral.spec import HOME, Spec
from corral.tools.background import READ_BYTES


class CorralSandbox(Documented, promises=AsyncCorralSandbox.__mro__):
    """The protocol for plain code; see `AsyncCorralSandbox`. The sandbox exists from the call on."""

    kind: ClassVar[type[AsyncCorralSandbox]] = AsyncCorralSandbox

    def __init__(
        self,
        sandbox_id: str | None = None,
        work_dir: str = HOME,
        startup_timeout: float | None = 180,
        *,
        backend: str | Backend = "embedded",
        spec: Spec | None = None,
        lifetime_seconds: float | EllipsisType | None = ...,
        **wishes: Unpack[Wishes],
    ) -> None:
        self._start_with(
            self.kind(
                sandbox_id,
                work_dir,
                startup_timeout,
                backend=backend,
                spec=spec,
                lifetime_seconds=lifetime_seconds,
                **wishes,
            )
        )

    @classmethod
    def over(cls, box: AsyncSandbox | Sandbox, *, work_dir: str | None = None) -> Self:
        """The protocol for a sandbox that belongs to somebody else: it is not ended with this object."""
        self = cls.__new__(cls)
        self._start_with(cls.kind.over(box, work_dir=work_dir))
        return self

    def _start_with(self, inner: AsyncCorralSandbox) -> None:
        self._inner = inner
        get_portal().run(inner.start())

    @property
    def async_sandbox(self) -> AsyncCorralSandbox:
        """The same sandbox for async callers, which costs no thread."""
        return self._inner

    @property
    def id(self) -> str:
        """The id it was asked for by, or the one it got."""
        return self._inner.id

    @property
    def work_dir(self) -> str:
        """Where commands run, and relative paths begin."""
        return self._inner.work_dir

    @property
    def last_error(self) -> Exception | None:
        """The last error that was returned, as the error it was."""
        return self._inner.last_error

    @property
    def last_activity(self) -> float:
        """When it was last used, in seconds since 1970."""
        return self._inner.last_activity

    def touch(self) -> None:
        """It was used just now."""
        self._inner.touch()

    def start(self) -> None:
        """Nothing: it was started when it was made."""

    def stop(self, purge: bool = False) -> None:  # noqa: FBT001, FBT002 - the known signature
        """See `AsyncCorralSandbox.stop`."""
        get_portal().run(self._inner.stop(purge))

    def close(self) -> None:
        """End it if it is this process's own; let go of it if it was asked for by an id. Idempotent."""
        get_portal().run(self._inner.aclose())

    def is_alive(self) -> bool:
        """See `AsyncCorralSandbox.is_alive`."""
        return get_portal().run(self._inner.is_alive())

    def execute(self, command: str, timeout: float | None = None) -> ExecuteResponse:
        """See `AsyncCorralSandbox.execute`."""
        return get_portal().run(self._inner.execute(command, timeout))

    def exists(self, path: str) -> bool:
        """See `AsyncCorralSandbox.exists`."""
        return get_portal().run(self._inner.exists(path))

    def read_bytes(self, path: str) -> bytes:
        """See `AsyncCorralSandbox.read_bytes`."""
        return get_portal().run(self._inner.read_bytes(path))

    def read(self, path: str, offset: int = 0, limit: int = 2000) -> str:
        """See `AsyncCorralSandbox.read`."""
        return get_portal().run(self._inner.read(path, offset, limit))

    def write(self, path: str, content: str | bytes) -> WriteResult:
        """See `AsyncCorralSandbox.write`."""
        return get_portal().run(self._inner.write(path, content))

    def edit(
        self,
        path: str,
        old_string: str,
        new_string: str,
        replace_all: bool = False,  # noqa: FBT001, FBT002 - the known signature
    ) -> EditResult:
        """See `AsyncCorralSandbox.edit`."""
        return get_portal().run(self._inner.edit(path, old_string, new_string, replace_all))

    def ls_info(self, path: str) -> list[FileInfo]:
        """See `AsyncCorralSandbox.ls_info`."""
        return get_portal().run(self._inner.ls_info(path))

    def glob_info(self, pattern: str, path: str = "/") -> list[FileInfo]:
        """See `AsyncCorralSandbox.glob_info`."""
        return get_portal().run(self._inner.glob_info(pattern, path))

    def grep_raw(
        self,
        pattern: str,
        path: str | None = None,
        glob: str | None = None,
        ignore_hidden: bool = True,  # noqa: FBT001, FBT002 - the known signature
    ) -> list[GrepMatch] | str:
        """See `AsyncCorralSandbox.grep_raw`."""
        return get_portal().run(self._inner.grep_raw(pattern, path, glob, ignore_hidden))

    def execute_background(self, command: str) -> BackgroundHandle:
        """See `AsyncCorralSandbox.execute_background`."""
        return get_portal().run(self._inner.execute_background(command))

    def read_background(
        self, shell_id: str, *, wait_seconds: float = 0.0, newest: bool = False, max_bytes: int = READ_BYTES
    ) -> BackgroundOutput:
        """See `AsyncCorralSandbox.read_background`."""
        return get_portal().run(
            self._inner.read_background(shell_id, wait_seconds=wait_seconds, newest=newest, max_bytes=max_bytes)
        )

    def write_background(self, shell_id: str, text: str | bytes, *, close: bool = False) -> bool:
        """See `AsyncCorralSandbox.write_background`."""
        return get_portal().run(self._inner.write_background(shell_id, text, close=close))

    def kill_background(self, shell_id: str) -> bool:
        """See `AsyncCorralSandbox.kill_background`."""
        return get_portal().run(self._inner.kill_background(shell_id))

    def list_background(self) -> list[BackgroundProcessInfo]:
        """See `AsyncCorralSandbox.list_background`."""
        return get_portal().run(self._inner.list_background())

    def kill_all_background(self) -> None:
        """See `AsyncCorralSandbox.kill_all_background`."""
        get_portal().run(self._inner.kill_all_background())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
