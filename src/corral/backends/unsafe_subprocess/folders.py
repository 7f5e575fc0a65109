"""The folders of sandboxes on the host, their locks, and what their paths mean.

Each sandbox has a folder with `home` (the workdir of its programs) and `tmp`. It lives as long as a process holds its
lock, which the kernel releases with the process; the next backend sweeps folders whose lock is free.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import subprocess
import tempfile
import uuid
from dataclasses import dataclass
from pathlib import Path

from corral.errors import BackendUnavailableError
from corral.inside.nolinks import on_error, opened
from corral.paths import TEMPORARY

_LOCK_SUFFIX = ".lock"


def find_base(given: Path | str | None = None) -> Path:
    """The folder of all sandboxes of this user, created if missing.

    Raises:
        BackendUnavailableError: it belongs to another user, or others can write to it.
    """
    base = Path(given) if given is not None else Path(tempfile.gettempdir()) / f"corral-unsafe-{os.getuid()}"
    base.mkdir(mode=0o700, parents=given is not None, exist_ok=True)
    info = base.lstat()
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid() or info.st_mode & 0o022:
        raise BackendUnavailableError(
            f"{base} belongs to another user, or others can write to it", op="create", hint="set TMPDIR to another"
        )
    return base.resolve()


@dataclass(frozen=True, slots=True)
class HostFolder:
    """The folder of one sandbox."""

    sandbox_id: str
    root: Path
    lock: int
    """The descriptor of its lock; a process that has it open holds the sandbox."""

    @property
    def home(self) -> str:
        """The workdir of its programs."""
        return str(self.root / "home")

    @property
    def temporary(self) -> str:
        """Its /tmp."""
        return str(self.root / "tmp")


def make_folder(base: Path) -> HostFolder:
    """Create a folder, locked before it exists, so that no sweep can remove it."""
    while True:
        sandbox_id = str(uuid.uuid4())
        lock = os.open(base / f"{sandbox_id}{_LOCK_SUFFIX}", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        # BlockingIOError: a sweep was faster, and is about to remove it.
        with on_error(os.close, lock), contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(lock).st_nlink:
                root = base / sandbox_id
                for folder in (root, root / "home", root / "tmp"):
                    folder.mkdir(mode=0o700)
                (root / "home").chmod(0o755)
                return HostFolder(sandbox_id, root, lock)
        os.close(lock)


def sweep(base: Path) -> None:
    """Remove the sandboxes whose lock is free."""
    for path in base.glob(f"*{_LOCK_SUFFIX}"):
        with contextlib.suppress(OSError), opened(os.open(path, os.O_RDWR | os.O_CLOEXEC)) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            discard(path.with_suffix(""))


def discard(root: Path) -> None:
    """Remove a folder and its lock. By `chmod` and `rm`, which handle any depth and mode."""
    subprocess.run(["chmod", "-R", "u+rwx", str(root)], stderr=subprocess.DEVNULL, check=False)
    subprocess.run(["rm", "-rf", str(root)], stderr=subprocess.DEVNULL, check=False)
    root.with_name(f"{root.name}{_LOCK_SUFFIX}").unlink(missing_ok=True)


class Names:
    """Translates callers' paths to paths of the host.

    They are the same, except for the requested workdir and `/tmp`, which are the sandbox's own folders. Only files in
    those may be changed.
    """

    def __init__(self, place: HostFolder, *, workdir: str) -> None:
        self._root = str(place.root)
        aliases = ((workdir.rstrip("/"), place.home), (TEMPORARY, place.temporary))
        self._aliases = tuple((alias, real) for alias, real in aliases if alias)

    def resolve(self, path: str) -> str:
        """The path on the host."""
        if self._is_below(path, self._root):
            return path
        for alias, real in self._aliases:
            if self._is_below(path, alias):
                return real + path[len(alias) :]
        return path

    def is_ours(self, path: str) -> bool:
        """True if a real path, with its links followed, is in one of the sandbox's folders."""
        return any(self._is_below(path, real) for _, real in self._aliases) or self._is_below(path, self._root)

    @staticmethod
    def _is_below(path: str, folder: str) -> bool:
        return path == folder or path.startswith(f"{folder}/")
