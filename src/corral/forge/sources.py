"""What a candidate is made of: a script, a folder, a commit, a command, or a user's function that drives an agent.

Each source has three methods: `describe` gives the entry for `run.json`, with a hash, so that a resumed run has the
same candidates; `place` copies its files into a folder of the sandbox; `command` gives the words to run in that folder
(functions have no command). The contract of all but functions: `<command> "<objective>" <output file>`; exit code 0 is
success, what is printed is the log, the file is the artifact.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shlex
import stat
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corral.client.sandbox import AsyncSandbox
from corral.errors import SpecError
from corral.forge.calling import describe_function
from corral.forge.git import GIT, git_environment, run_git

if TYPE_CHECKING:
    from corral.client.sync import Sandbox

OBJECTIVE = "{objective}"
OUTPUT = "{output}"
FOLDER = "candidate"
"""Below the workdir: where a candidate's files are, and where it is started."""
_INTERPRETERS: Mapping[str, tuple[str, ...]] = {
    ".py": ("python3",), ".sh": ("sh",), ".bash": ("bash",), ".js": ("node",), ".mjs": ("node",), ".cjs": ("node",),
    ".rb": ("ruby",), ".pl": ("perl",), ".php": ("php",), ".lua": ("lua",),
}  # fmt: skip
_SHELLS = frozenset({"sh", "bash", "dash", "ksh", "zsh"})
_CHUNK_BYTES = 256 * 1024
_MAX_HASHED_FILES = 100_000


@dataclass(frozen=True, slots=True)
class ScriptSource:
    """One file. Its ending decides how it runs; any other file is executed, so that its first line (#!) decides."""

    path: Path
    name: str = ""
    """Its name inside the sandbox; by default its own."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(self.path))
        object.__setattr__(self, "name", self.name or self.path.name)
        if not self.path.is_file():
            raise SpecError(f"no such file: {str(self.path)!r}", hint="give the path of a script")

    def describe(self) -> dict[str, Any]:
        return {"kind": "script", "path": str(self.path.absolute()), "sha256": hash_file(self.path)}

    async def place(self, box: AsyncSandbox, folder: str) -> None:
        mode = 0o755 if Path(self.name).suffix not in _INTERPRETERS else 0o644
        await box.files.write(f"{folder}/{self.name}", await asyncio.to_thread(self.path.read_bytes), mode=mode)

    def command(self, folder: str) -> tuple[str, ...]:
        return (*_INTERPRETERS.get(Path(self.name).suffix, ()), f"{folder}/{self.name}")


class _CommandBase:
    """A source with a command of the user's."""

    __slots__ = ()
    argv: tuple[str, ...]

    def command(self, folder: str) -> tuple[str, ...]:
        return self.argv


@dataclass(frozen=True, slots=True)
class FolderSource(_CommandBase):
    """A folder with all its files, and the command that is run in it."""

    path: Path
    argv: tuple[str, ...] = ()
    """Without one: `./run` if it is there, else `python3 main.py`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(self.path))
        object.__setattr__(self, "argv", as_argv(self.argv))
        if not self.path.is_dir():
            raise SpecError(f"no such folder: {str(self.path)!r}", hint="give the path of a folder")
        if not self.argv:
            object.__setattr__(self, "argv", _find_start({name.name for name in self.path.iterdir()}, self.path))

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "folder", "path": str(self.path.absolute()), "command": list(self.argv),
            "sha256": hash_folder(self.path),
        }  # fmt: skip

    async def place(self, box: AsyncSandbox, folder: str) -> None:
        await box.files.upload(self.path, folder)


@dataclass(frozen=True, slots=True)
class GitSource(_CommandBase):
    """A commit of a repository on this machine; uncommitted changes are ignored."""

    path: Path
    ref: str = "HEAD"
    argv: tuple[str, ...] = ()
    commit: str = field(default="", init=False)
    """Resolved when the candidate is created: a branch may move later."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(self.path))
        object.__setattr__(self, "argv", as_argv(self.argv))
        if self.ref.startswith("-") or "\0" in self.ref:
            raise SpecError(f"{self.ref!r} is not a commit", hint="give a branch, a tag or a commit")
        object.__setattr__(
            self, "commit", run_git(self.path, "rev-parse", "--verify", f"{self.ref}^{{commit}}").strip()
        )
        if not self.argv:
            names = set(run_git(self.path, "ls-tree", "--name-only", "-z", f"{self.commit}:./").split("\0"))
            object.__setattr__(self, "argv", _find_start(names, self.path))

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "git", "path": str(self.path.absolute()), "ref": self.ref, "commit": self.commit,
            "command": list(self.argv),
        }  # fmt: skip

    async def place(self, box: AsyncSandbox, folder: str) -> None:
        await box.files.mkdir(folder)
        await box.files.unpack(folder, self._archive())

    async def _archive(self) -> AsyncIterator[bytes]:
        process = await asyncio.create_subprocess_exec(
            *GIT, "-C", str(self.path), "archive", "--format=tar", f"{self.commit}:./",
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
            env=await asyncio.to_thread(git_environment, self.path),
        )  # fmt: skip
        assert process.stdout is not None
        try:
            while chunk := await process.stdout.read(_CHUNK_BYTES):
                yield chunk
            if await process.wait() != 0:
                text = f"git could not read {self.commit} of {str(self.path)!r}"
                raise SpecError(text, hint="check that it still exists")
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


@dataclass(frozen=True, slots=True)
class CommandSource(_CommandBase):
    """A command that exists in the sandbox, or that the setup has installed. A text is for /bin/sh."""

    argv: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "argv", as_argv(self.argv))
        if not self.argv:
            raise SpecError("the command is empty", hint="give a program and its arguments")

    def describe(self) -> dict[str, Any]:
        return {"kind": "command", "command": list(self.argv)}

    async def place(self, box: AsyncSandbox, folder: str) -> None:
        await box.files.mkdir(folder)  # it runs there


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """What an async function that drives an agent gets."""

    objective: str
    sandbox: AsyncSandbox
    """The candidate's own. The contest closes it."""
    output: str
    """The path inside where the artifact belongs. Every other file in that folder is an artifact as well."""
    log: Callable[[str], None] = field(repr=False)
    """Adds a line to the candidate's log. From any thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncSeat:
    """What a plain function that drives an agent gets. It runs in a thread."""

    objective: str
    sandbox: Sandbox
    output: str
    log: Callable[[str], None] = field(repr=False)


@dataclass(frozen=True, slots=True)
class AgentSource:
    """A function that drives an agent. It runs in this process, and gets a sandbox for what the agent does.

    An async function gets a `Seat`; a plain one runs in a thread and gets a `SyncSeat`. Both have the objective, the
    sandbox, the path of the artifact, and `log()`. An exception counts as the candidate's crash.
    """

    function: Callable[[Seat], Awaitable[object]] | Callable[[SyncSeat], object]

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise SpecError(f"{self.function!r} is not callable", hint="give a function that takes a seat")

    def describe(self) -> dict[str, Any]:
        found = describe_function(self.function)
        return {"kind": "agent", "name": found["function"], "sha256": found["sha256"]}

    async def place(self, box: AsyncSandbox, folder: str) -> None:
        await box.files.mkdir(folder)


Source = ScriptSource | FolderSource | GitSource | CommandSource | AgentSource


def as_argv(command: str | Sequence[str]) -> tuple[str, ...]:
    """A command's words; a text is for /bin/sh, with the objective as $1 and the output file as $2.

    Raises:
        SpecError: something else than texts.
    """
    if isinstance(command, str):
        return ("/bin/sh", "-c", command, "candidate") if command.strip() else ()
    if not all(isinstance(word, str) and "\0" not in word for word in command):
        raise SpecError(f"{list(command)!r} is not a command", hint="give texts, without NUL")
    return tuple(command)


def fill_in(argv: Sequence[str], *, objective: str, output: str) -> list[str]:
    """The words with `{objective}` and `{output}` in their places; if neither is there, both are put at the end."""
    if not any(OBJECTIVE in word or OUTPUT in word for word in argv):
        return [*argv, objective, output]
    if len(argv) > 2 and Path(argv[0]).name in _SHELLS and argv[1] == "-c":  # in a shell's text a word must stay a word
        text = argv[2].replace(OUTPUT, shlex.quote(output)).replace(OBJECTIVE, shlex.quote(objective))
        return [*argv[:2], text, *argv[3:]]
    # The objective last: it may itself contain `{output}`.
    return [word if OBJECTIVE not in word else word.replace(OBJECTIVE, objective) for word in
            (word.replace(OUTPUT, output) for word in argv)]  # fmt: skip


def hash_file(path: Path) -> str:
    """SHA-256 of a file's content. Raises: SpecError when it can't be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise SpecError(
            f"{str(path)!r} can't be read: {error.strerror}", hint="make it readable: candidates are hashed and copied"
        ) from error


def hash_folder(path: Path) -> str:
    """SHA-256 over names, kinds, modes and contents below a folder, in order.

    Raises:
        SpecError: too many files, or one that can't be read.
    """
    whole = hashlib.sha256()
    count = 0
    for folder, names, files in os.walk(path):
        names.sort()
        for name in sorted([*files, *(name for name in names if Path(folder, name).is_symlink())]):
            count += 1
            if count > _MAX_HASHED_FILES:
                raise SpecError(f"{str(path)!r} has more than {_MAX_HASHED_FILES} files", hint="give a smaller folder")
            file = Path(folder, name)
            status = file.lstat()
            if stat.S_ISLNK(status.st_mode):
                content = hashlib.sha256(os.fsencode(file.readlink())).hexdigest()
            elif stat.S_ISREG(status.st_mode):
                content = hash_file(file)
            else:
                continue  # not copied either
            kind = stat.S_IFMT(status.st_mode) | (status.st_mode & 0o111)
            whole.update(os.fsencode(file.relative_to(path)) + f"\0{kind:o}\0{content}\0".encode())
    return whole.hexdigest()


def _find_start(names: set[str], path: Path) -> tuple[str, ...]:
    if "run" in names:
        return ("./run",)
    if "main.py" in names:
        return ("python3", "main.py")
    raise SpecError(
        f"{str(path)!r} has neither `run` nor `main.py`", hint="give the command: Candidate.folder(…, command=…)"
    )
