"""Files of a sandbox that is a folder of the host. Any file may be read; only files in the sandbox may be changed."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable

from corral.backends.unsafe_subprocess.folders import Names
from corral.base.filereports import told
from corral.base.files import DEFAULT_MATCH_LIMIT, Message, check_string
from corral.base.process import AsyncProcess
from corral.base.taskfiles import Spawn, TaskFiles
from corral.paths import FollowedPath, SandboxPath
from corral.protocol import PathLike
from corral.results import GlobResult

_FOLLOWED = frozenset(("write", "edit", "chmod", "unpack", "replace"))
_CHANGING = frozenset(("mkdir", "link", "move", "remove", *_FOLLOWED))


class HostFiles(TaskFiles):
    """Files of the host, through the agent of the sandbox."""

    def __init__(
        self, spawn: Spawn, *, workdir: str, names: Names, sandbox_id: str, guard: Callable[[], None],
        disk_bytes: Callable[[], int],
    ) -> None:  # fmt: skip
        super().__init__(
            self._spawn_confined, workdir=workdir, sandbox_id=sandbox_id, guard=guard, disk_bytes=disk_bytes
        )
        self._names = names
        self._spawn_any = spawn
        self._plain, self.at = self.at, self._real

    def _real(self, path: PathLike) -> SandboxPath:
        """The path on the host for a caller's path."""
        kind = FollowedPath if isinstance(path, FollowedPath) else SandboxPath
        return kind(self._names.resolve(self._plain(path)))

    async def glob(
        self, pattern: str, *, path: PathLike = ".", hidden: bool = True, limit: int = DEFAULT_MATCH_LIMIT
    ) -> GlobResult:
        if check_string(pattern, what="pattern").startswith("/"):
            pattern = self._names.resolve(pattern)
        return await super().glob(pattern, path=path, hidden=hidden, limit=limit)

    async def _spawn_confined(self, message: Message, stdin: bool) -> AsyncProcess:  # noqa: FBT001 - see `Spawn`
        operation = message["op"]
        if operation in _CHANGING:
            follow = operation in _FOLLOWED or bool(message.get("parents"))
            keys = ("source", "target") if operation == "move" else ("path",)
            with told(message[keys[0]], sandbox_id=self._sandbox_id, op=operation):
                real = {key: self._ours(message[key], follow=follow) for key in keys}
            if operation != "replace":  # its result names files by the given path
                message = {**message, **real}
        return await self._spawn_any(message, stdin)

    def _ours(self, path: str, *, follow: bool) -> str:
        """The real path, which must lie in the sandbox. Raises: PermissionError."""
        folder, name = os.path.split(path)
        if isinstance(path, FollowedPath):
            real: str = path
        else:
            real = os.path.realpath(path) if follow or name == ".." else os.path.join(os.path.realpath(folder), name)
        if not self._names.is_ours(real):
            with contextlib.suppress(FileNotFoundError):
                if follow and not stat.S_ISREG(mode := os.stat(real).st_mode) and not stat.S_ISDIR(mode):
                    raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return real
