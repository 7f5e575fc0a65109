"""The file of `corral run`: the language it is written in, and its path in the sandbox."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath, PurePosixPath

from corral.client.sandbox import AsyncSandbox
from corral.errors import SandboxFileError, UnknownLanguageError
from corral.languages import Runtime, find_language, language_names

DEFAULT = "python"
_EXTENSIONS = {"pyw": "python", "sh": "bash", "jsx": "javascript"}
"""Extensions that are no name of their language; `.sh` files often need bash."""
_SHELLS = ("bash", "sh")
_SHEBANG = re.compile(rb"#!\s*(\S+)(?:[ \t]+(.*))?")


def guess_language(name: str, source: bytes) -> str | None:
    """By the file's name, else by a #! line, else None. For a shell script the #! line comes first.

    `-` is a program from standard input: Python, unless its #! line says otherwise.
    """
    if name == "-":
        return _known_program(find_program(source)) or DEFAULT
    extension = PurePath(name).suffix.removeprefix(".").lower()
    by_name = _EXTENSIONS.get(extension) or _known(extension)
    by_line = _known_program(find_program(source))
    if by_name is None or (by_name in _SHELLS and by_line in _SHELLS):
        return by_line or by_name
    return by_name


def explain_unknown(name: str, source: bytes) -> str:
    """The message for a file of unknown language."""
    program = find_program(source)
    known = ", ".join(language_names())
    if program:
        return f"{name!r} is for {program!r}, which is not one of {known}; --language NAME runs it as one of them"
    return f"{name!r}: neither its name nor a #! line says what it is written in; give --language ({known})"


def find_program(source: bytes) -> str:
    """The program of a #! line, without its folder; empty without such a line."""
    found = _SHEBANG.match(source.partition(b"\n")[0])
    if found is None:
        return ""
    words = [found[1], *(found[2] or b"").split()]
    if words[0].endswith(b"/env"):
        words = [word for word in words[1:] if not word.startswith(b"-") and b"=" not in word]
    return words[0].rpartition(b"/")[2].decode("utf-8", "replace") if words else ""


def _known_program(program: str) -> str | None:
    return _known(program) or _known(re.sub(r"[\d.]+$", "", program))


def _known(name: str) -> str | None:
    try:
        return find_language(name).name if name else None
    except UnknownLanguageError:
        return None


# The path in the sandbox of a file of `corral run`.

_BY_EXTENSION = ("javascript", "typescript")
"""Their runtimes look at a file's extension and project, and older ones refuse files that they run as snippets."""

_SAY_THEIR_KIND = (".mjs", ".cjs")
"""All versions of all runtimes obey these extensions."""

_CHECK_SECONDS = 30.0
_CHECK = r"""
const fs = require("fs"), os = require("os"), path = require("path"), vm = require("vm"), Module = require("module");
const source = fs.readFileSync(0, "utf8").replace(/^\uFEFF/, "").replace(/^#!.*/, "");
try { new vm.Script(Module.wrap(source)); process.exit(0); } catch {}
if (/\brequire\s*[(.]|\bmodule\.exports\b|\bexports\.|\b__(?:dir|file)name\b/.test(source)) process.exit(1);
const folder = fs.mkdtempSync(path.join(os.tmpdir(), ".corral-")), file = path.join(folder, "module.js");
try {
  fs.writeFileSync(file, source);
  process.exitCode = require("child_process").spawnSync(process.execPath, ["--check", file]).status;
} finally { fs.rmSync(folder, { recursive: true }); }
"""
"""Exits with 0 if the source is CommonJS, or a module that this version of Node.js recognises in a .js file. A source
that awaits at the top level and uses names of CommonJS is neither."""


@dataclass(frozen=True, slots=True)
class RunFile:
    """The path inside from which the file is run; None: it is run as a snippet."""

    path: str | None = None
    ours: bool = False
    """Corral copied it there, not the user."""

    async def leave(self, box: AsyncSandbox) -> None:
        """Remove it again, if Corral copied it: only the program's files are copied out."""
        if self.ours and self.path is not None:
            with contextlib.suppress(SandboxFileError):  # the program may have put something else in its place
                await box.files.remove(self.path, missing_ok=True)


async def place_file(
    box: AsyncSandbox, source: bytes, file: Path | None, language: str, *, copied: Sequence[Path]
) -> RunFile:
    """Its path in a --copy-in folder, else one in the working folder, under its own name.

    Raises: as writing a file does.
    """
    if file is None:
        return RunFile()
    for folder in copied:
        relative = _relative(file, folder)
        if relative is not None and await _holds(box, str(relative), source):
            return RunFile(_absolute(box, relative))
    name = await _choose_name(box, source, file, language)
    if name is None or await box.files.exists(name):
        return RunFile()  # also if another file of that name was copied in: it is not overwritten
    await box.files.write(name, source, mode=0o644)
    return RunFile(_absolute(box, PurePosixPath(name)), ours=True)


def _relative(file: Path, folder: Path) -> PurePosixPath | None:
    """The path of the file below the folder, as given or with links resolved."""
    if folder.is_file():
        return PurePosixPath(file.name) if file.resolve() == folder.resolve() else None
    for name in (os.path.abspath, os.path.realpath):
        with contextlib.suppress(ValueError):
            return PurePosixPath(Path(name(file)).relative_to(name(folder)))
    return None


async def _holds(box: AsyncSandbox, path: str, source: bytes) -> bool:
    """True if it exists and is this file: a later --copy-in may have replaced it."""
    try:
        return await box.files.read(path, max_bytes=len(source)) == source
    except SandboxFileError:
        return False


async def _choose_name(box: AsyncSandbox, source: bytes, file: Path, language: str) -> str | None:
    """A file name under which the file, without its project, runs as its text would run as a snippet.

    Its own name, else one with another extension; None if it can only be run as a snippet.
    """
    if language not in _BY_EXTENSION or file.suffix in _SAY_THEIR_KIND:
        return file.name
    runtime = await box.find_runtime(find_language(language), source)
    if file.suffix.removeprefix(".") in runtime.own:
        return file.name
    if (runtime.program, language) == ("node", "javascript") and await _node_runs(box, source, runtime):
        return file.name
    return None if runtime.in_place else f"{file.stem}.{runtime.extension}"


async def _node_runs(box: AsyncSandbox, source: bytes, runtime: Runtime) -> bool:
    """True if Node.js runs a .js file of this source like the snippet; new versions detect modules by their text."""
    if runtime.in_place and b"await" not in source:
        return True  # plain CommonJS
    return (await box.exec(["node", "-e", _CHECK], stdin=source, timeout=_CHECK_SECONDS)).ok


def _absolute(box: AsyncSandbox, relative: PurePosixPath) -> str:
    return str(PurePosixPath(box.spec.workdir) / relative)
