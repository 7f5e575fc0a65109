"""CorralSandbox: `AsyncCorralSandbox` for sync code, derived from it as `corral.Sandbox` is from `AsyncSandbox`."""

from __future__ import annotations

from typing import ClassVar, Self

from corral.adapters.pydantic_ai.sandbox import AsyncCorralSandbox
from corral.client.sandbox import AsyncSandbox
from corral.client.sync import Derived, Sandbox, derive, derive_init, derive_property
from corral.concurrency.closing import SyncClosing


class CorralSandbox(Derived[AsyncCorralSandbox], SyncClosing):
    """The protocol for sync code. The constructor creates the sandbox; its arguments are those of
    `AsyncCorralSandbox`."""

    kind: ClassVar[type[AsyncCorralSandbox]] = AsyncCorralSandbox

    @derive_init(AsyncCorralSandbox)
    def __init__(self, target: AsyncCorralSandbox) -> None:
        self._adopt(target)

    def _adopt(self, target: AsyncCorralSandbox) -> None:
        self._target = target
        self.start()

    @classmethod
    def over(cls, box: AsyncSandbox | Sandbox, *, work_dir: str | None = None) -> Self:
        """The protocol for an existing sandbox, which is not ended with this object."""
        self = cls.__new__(cls)
        self._adopt(cls.kind.over(box, work_dir=work_dir))
        return self

    @property
    def async_sandbox(self) -> AsyncCorralSandbox:
        """The same sandbox for async callers, which costs no thread."""
        return self._target

    @property
    def work_dir(self) -> str:
        """The working folder of commands, which relative paths start from."""
        return self._target.work_dir

    @property
    def last_error(self) -> Exception | None:
        """The last error that was returned, as an exception."""
        return self._target.last_error

    def touch(self) -> None:
        """Note that it was used now."""
        self._target.touch()

    id = derive_property(AsyncCorralSandbox.id)
    last_activity = derive_property(AsyncCorralSandbox.last_activity)
    start = derive(AsyncCorralSandbox.start)
    stop = derive(AsyncCorralSandbox.stop)
    close = derive(AsyncCorralSandbox.aclose)
    is_alive = derive(AsyncCorralSandbox.is_alive)
    execute = derive(AsyncCorralSandbox.execute)
    exists = derive(AsyncCorralSandbox.exists)
    read_bytes = derive(AsyncCorralSandbox.read_bytes)
    read = derive(AsyncCorralSandbox.read)
    write = derive(AsyncCorralSandbox.write)
    edit = derive(AsyncCorralSandbox.edit)
    ls_info = derive(AsyncCorralSandbox.ls_info)
    glob_info = derive(AsyncCorralSandbox.glob_info)
    grep_raw = derive(AsyncCorralSandbox.grep_raw)
    execute_background = derive(AsyncCorralSandbox.execute_background)
    read_background = derive(AsyncCorralSandbox.read_background)
    write_background = derive(AsyncCorralSandbox.write_background)
    kill_background = derive(AsyncCorralSandbox.kill_background)
    list_background = derive(AsyncCorralSandbox.list_background)
    kill_all_background = derive(AsyncCorralSandbox.kill_all_background)
