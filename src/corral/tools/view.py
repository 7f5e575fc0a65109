"""The kernel's part of a shell policy: what one call may write and see.

`readonly` makes the whole sandbox read-only for the call. `ignore` hides the files and folders that it matches, and
other hard links to these files. `allowed` and `blocked` hide programs: an empty file that can't be executed replaces
each program on PATH that may not run. So it does not matter what starts it: a shell, `env`, `find -exec`, or a program
that the model has written.

Programs outside PATH are not hidden, and rules of more than one word hide nothing: the kernel does not see the words
that a program gets.
"""

from __future__ import annotations

import posixpath
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from corral.client.sandbox import AsyncSandbox
from corral.errors import (
    InvalidCommandError,
    PolicyError,
    SandboxFileError,
    SandboxFileNotFoundError,
    SandboxNotFolderError,
    SandboxPermissionError,
    SpecError,
)
from corral.protocol import PathLike
from corral.results import ExecResult, FileInfo
from corral.tools.concealment import MAX_HIDDEN, SYSTEM, complete, find_unreadable, is_below
from corral.tools.permission import Permissions, find_real, normal_path, real_path
from corral.tools.policy import Ignored, ShellPolicy, read_ignore
from corral.tools.programs import is_loader, means_program
from corral.tools.reading import JUDGED_FILES, limit_search

_MULTICALL_NAMES = 20
_PATH_SECONDS = 30.0
_LISTED = ("/etc/alternatives",)
"""Folders outside PATH to which many programs are links: listed at once, instead of asking for each."""
_USUAL_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SHEBANG_BYTES = 256
_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class View:
    """The view arguments of `exec` for one call."""

    read_only: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()


MakeView = Callable[[], Awaitable[View]]


async def run_in_view(
    box: AsyncSandbox,
    words: list[str],
    make_view: MakeView,
    *,
    cwd: str | None,
    env: Mapping[str, str] | None = None,
    timeout: float,
) -> ExecResult:
    """Run a command that can write and see no more than a view permits; the view is made for each attempt.

    Raises:
        CapabilityError: the backend does not support views.
    """
    for attempt in range(_ATTEMPTS):
        view = await make_view()
        try:
            return await box.exec(
                words, cwd=cwd, env=env, timeout=timeout, read_only=view.read_only, hidden=view.hidden
            )
        except InvalidCommandError as error:
            # A path of the view was removed between looking and running. Nothing was run.
            if "view path" not in str(error) or attempt == _ATTEMPTS - 1:
                raise
            _inventories.pop(box, None)
    raise AssertionError("the loop ends by itself")


async def make_view_of_rules(box: AsyncSandbox, permissions: Permissions, *, workdir: str) -> View:
    """The view that hides the files in the working folder that the rules deny to read, or say to ask for.

    Raises:
        PolicyError: there are too many files to hide, or to search.
        SandboxFileError: the sandbox could not be searched.
    """
    root = await real_path(box.files, workdir, workdir=workdir)
    permissions = permissions.within(normal_path(workdir, workdir=workdir), root)
    async with limit_search():
        found = await box.files.glob("**", path=root, hidden=True, limit=JUDGED_FILES)
    if found.truncated:
        raise PolicyError(f"{root} holds more than {JUDGED_FILES} files, too many to apply rules to commands")
    hidden: dict[str, FileInfo | None] = dict.fromkeys(find_unreadable(found))
    if root in hidden:
        raise PolicyError(f"{root} can't be read, so the rules can't be applied to commands")
    for info in found.files:
        if _is_denied(permissions, info) and (target := await _find_target(box, info, root, outside=False)) is not None:
            hidden[target.path] = target
    kept = await complete(box.files, hidden, workdir=root)
    return View(("/",) if permissions.never("write") and permissions.never("edit") else (), kept)


def _is_denied(permissions: Permissions, info: FileInfo) -> bool:
    decision = permissions.decide("read", info.path)
    if decision.rule is not None:
        return decision.action != "allow"
    # A folder that only the default denies may hold what a rule allows.
    return decision.action == "deny" and not info.is_folder


@dataclass(slots=True)
class _Inventory:
    """The programs of one sandbox: where each name on PATH leads."""

    folders: tuple[str, ...]
    stamp: tuple[tuple[str, float], ...] = ()
    reals: dict[str, str] = field(default_factory=dict)
    """Path on PATH → the real file."""
    ids: dict[str, str] = field(default_factory=dict)
    """Real file → its id, which is the same for all its hard links."""
    allowed: dict[tuple[str, ...], frozenset[str]] = field(default_factory=dict)
    """Patterns of allowed commands → the real files that they need."""


_inventories: weakref.WeakKeyDictionary[AsyncSandbox, dict[str, _Inventory]] = weakref.WeakKeyDictionary()
"""By sandbox and PATH. Tools with different rules on one sandbox share them."""


class Viewer:
    """Makes views for one policy. Programs are looked up once per sandbox, and again when a folder on PATH changes."""

    def __init__(self, policy: ShellPolicy, *, env: Mapping[str, str] | None = None, shell: bool = False) -> None:
        self._policy = policy
        self._env = dict(env or {})
        self._shell = shell

    async def make(self, box: AsyncSandbox, *, workdir: str) -> View:
        """The view of the next call, in that folder.

        Raises:
            SpecError: `ignore` matches more files than can be hidden.
            PolicyError: there are too many unreadable folders to hide.
            SandboxFileError: the sandbox could not be searched.
        """
        hidden = await self._hide_programs(box)
        hidden += await self._hide_ignored(box, workdir)
        return View(("/",) if self._policy.readonly else (), tuple(dict.fromkeys(hidden)))

    # Programs.

    async def _hide_programs(self, box: AsyncSandbox) -> list[str]:
        # Not `commands`: the commands of `readonly` start no others, and nothing can be written anyway.
        commands = self._policy.allowed
        blocked = [posixpath.basename(pattern) for pattern in self._policy.blocked if len(pattern.split()) == 1]
        if commands is None and not blocked:
            return []
        inventory = await self._take_inventory(box)
        allowed = await self._find_allowed(box, inventory, commands) if commands is not None else frozenset()
        named: dict[str, list[str]] = {}
        reals: dict[str, dict[str, None]] = {}
        for path, real in inventory.reals.items():
            # A file may have several names, by symbolic or hard links (`awk` and `mawk`): all are one program.
            program = inventory.ids.get(real, real)
            named.setdefault(program, []).append(posixpath.basename(path))
            reals.setdefault(program, {})[real] = None
        hidden: list[str] = []
        for program, names in named.items():
            is_blocked = _is_blocked(names, blocked, is_wanted=any(real in allowed for real in reals[program]))
            hidden += [real for real in reals[program] if is_blocked or (commands is not None and real not in allowed)]
        return hidden

    async def _take_inventory(self, box: AsyncSandbox) -> _Inventory:
        path = self._env.get("PATH", "")
        known = _inventories.setdefault(box, {}).get(path)
        folders = known.folders if known is not None else await self._find_folders(box)
        programs = _Programs(box)
        stamp = tuple([(folder, await programs.find_change(folder)) for folder in folders])
        if known is not None and known.stamp == stamp:
            return known
        inventory = _Inventory(folders, stamp)
        for folder in (*folders, *_LISTED):
            await programs.list_folder(folder)
        for folder in folders:
            for name in programs.listed[folder]:
                real = await programs.follow(f"{folder}/{name}")
                if real is not None and not is_loader(real.name):
                    inventory.reals[f"{folder}/{name}"] = real.path
                    if real.file_id is not None:
                        inventory.ids[real.path] = real.file_id
        _inventories.setdefault(box, {})[path] = inventory
        return inventory

    async def _find_folders(self, box: AsyncSandbox) -> tuple[str, ...]:
        """The folders of PATH, with links followed."""
        found = await box.exec(["/bin/sh", "-c", 'printf %s "$PATH"'], env=self._env, timeout=_PATH_SECONDS)
        path = found.stdout if found.ok and found.stdout else _USUAL_PATH
        programs = _Programs(box)
        named = [folder for folder in path.split(":") if folder.startswith("/")]
        return tuple(dict.fromkeys([await find_real(programs, folder) for folder in named]))

    async def _find_allowed(
        self, box: AsyncSandbox, inventory: _Inventory, commands: tuple[str, ...]
    ) -> frozenset[str]:
        """The real files of allowed programs, and of the interpreters of scripts among them."""
        if commands in inventory.allowed:
            return inventory.allowed[commands]
        names = {pattern.split()[0] for pattern in commands if pattern.split()}
        waiting = [
            real
            for path, real in inventory.reals.items()
            if any(fnmatchcase(posixpath.basename(path), name) for name in names)
        ]
        programs = _Programs(box)
        by_path = [name for name in names if name.startswith("/")]
        followed = [await programs.follow(path) for path in (*by_path, *(("/bin/sh",) if self._shell else ()))]
        waiting += [real.path for real in followed if real is not None]
        allowed: set[str] = set()
        while waiting:
            real = waiting.pop()
            if real not in allowed:
                allowed.add(real)
                waiting += await self._find_interpreters(box, inventory, real)
        inventory.allowed[commands] = frozenset(allowed)
        return inventory.allowed[commands]

    async def _find_interpreters(self, box: AsyncSandbox, inventory: _Inventory, path: str) -> list[str]:
        head = b""
        try:
            async for piece in box.files.read_stream(path, chunk_bytes=_SHEBANG_BYTES):
                head = piece
                break
        except SandboxFileError:
            return []  # a file that this user can't read can't be run as a script
        if not head.startswith(b"#!"):
            return []
        words = head[2:].split(b"\n")[0].decode("utf-8", "surrogateescape").split()
        interpreter = await _Programs(box).follow(words[0]) if words else None
        found = [interpreter.path] if interpreter is not None else []
        if words and posixpath.basename(words[0]) == "env":
            names = [word for word in words[1:] if not word.startswith("-")][:1]
            found += [real for at, real in inventory.reals.items() if posixpath.basename(at) in names]
        return found

    # Files.

    async def _hide_ignored(self, box: AsyncSandbox, workdir: str) -> list[str]:
        found: dict[str, FileInfo | None] = {}
        for pattern in self._policy.ignore:
            for ignored in read_ignore(pattern):
                found |= await self._find_ignored(box, ignored, workdir)
        return list(await complete(box.files, found, workdir=workdir))

    async def _find_ignored(self, box: AsyncSandbox, ignored: Ignored, workdir: str) -> dict[str, FileInfo | None]:
        """The paths that a pattern matches now, and folders that can't be read, which may contain matches."""
        root, glob = _split_pattern(ignored, workdir)
        try:
            root = await real_path(box.files, root, workdir=workdir)
            result = await box.files.glob(glob, path=root, hidden=True, limit=MAX_HIDDEN)
        except (SandboxFileNotFoundError, SandboxNotFolderError):
            return {}
        except SandboxPermissionError:
            return {root: None}
        if result.truncated:
            raise SpecError(
                f"ignore={ignored.pattern!r} matches too many files", hint="ignore the folder they are in instead"
            )
        found: dict[str, FileInfo | None] = dict.fromkeys(find_unreadable(result))
        for info in result.files:
            if (target := await _find_target(box, info, workdir, outside=True)) is not None:
                found[target.path] = target
        return found


async def _find_target(box: AsyncSandbox, info: FileInfo, workdir: str, *, outside: bool) -> FileInfo | None:
    """The file itself, or the target of a link if it can be hidden; with `outside`, also outside the working folder.

    Code inside can create a link to the root, or to a library that every program needs. Such a link must not hide its
    target.
    """
    if info.kind != "link":
        return info
    try:
        target = await real_path(box.files, info.path, workdir=workdir)
        found = await box.files.stat(target)
    except SandboxFileError:
        return None  # a broken link
    if is_below(target, workdir):
        return found if target != workdir else None
    needed = any(is_below(target, system) or is_below(system, target) for system in (*SYSTEM, workdir))
    return found if outside and not needed else None


def _is_blocked(names: Sequence[str], blocked: Sequence[str], *, is_wanted: bool) -> bool:
    """True if a program with these names is to be hidden.

    One blocked name is enough: `awk` blocks mawk. But if another name is allowed, or if the file has so many names that
    it is a multi-call binary (busybox), all of its names must be blocked.
    """
    meant = [any(means_program(pattern, name) for pattern in blocked) for name in names]
    return all(meant) or (any(meant) and not is_wanted and len(names) < _MULTICALL_NAMES)


def _split_pattern(ignored: Ignored, workdir: str) -> tuple[str, str]:
    """The folder to search, and a glob below it; for the whole content of a folder, the folder itself is matched.

    The folder is as deep as possible: links on the way to it are followed, and links below it are not.
    """
    pattern = ignored.pattern.removesuffix("/**") if ignored.pattern.strip("/*") else ignored.pattern
    if ignored.kind == "name":
        return workdir, f"**/{pattern}"
    root = workdir if ignored.kind == "relative" else "/"
    parts = [part for part in pattern.split("/") if part]
    while len(parts) > 1 and not set(parts[0]) & set("*?["):
        root = posixpath.normpath(posixpath.join(root, parts.pop(0)))
    return root, "/".join(parts)


class _Programs:
    """Follows links to programs, with as few calls to the sandbox as possible."""

    def __init__(self, box: AsyncSandbox) -> None:
        self._files = box.files
        self._known: dict[str, FileInfo | None] = {}
        self.listed: dict[str, list[str]] = {}
        """The names in the folders that were listed."""

    async def stat(self, path: PathLike, *, follow: bool = True) -> FileInfo:
        """What is at a path; a link is not followed. Raises: SandboxFileNotFoundError."""
        path = str(path)
        if path not in self._known and posixpath.dirname(path) not in self.listed:
            try:
                self._known[path] = await self._files.stat(path, follow=False)
            except SandboxFileError:
                self._known[path] = None
        found = self._known.get(path)
        if found is None:
            raise SandboxFileNotFoundError(f"{path} does not exist", path=path, op="stat")
        return found

    async def find_change(self, folder: str) -> float:
        """When a folder was last changed; -1 if it can't be read."""
        try:
            return (await self._files.stat(folder)).modified
        except SandboxFileError:
            return -1.0

    async def list_folder(self, folder: str) -> None:
        """Read a folder's entries, for `follow`."""
        try:
            entries = await self._files.list(folder)
        except SandboxFileError:
            entries = []
        self.listed[folder] = [info.name for info in entries]
        self._known |= {info.path: info for info in entries}

    async def follow(self, path: str) -> FileInfo | None:
        """The file that a path leads to; None if there is no such file."""
        try:
            info = await self.stat(await real_path(self, path, workdir="/"))
        except SandboxFileError:
            return None
        # Its mode is not checked: it may become executable at any moment.
        return info if info.kind == "file" else None
