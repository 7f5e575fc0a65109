"""A very small shell: simple commands, `;` `&&` `||` `&`, quotes, variables, redirections, and cd, exit, export, kill.

Anything else is an error message and the exit code of a syntax error: a fake must not guess.
"""

from __future__ import annotations

import posixpath
import re
import signal
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from corral.backends.memory.call import Call, Input
from corral.errors import CorralError
from corral.results import StreamName

_TOKEN = re.compile(
    r"""(?P<space>[ \t]+|\\\n|\#[^\n]*) | (?P<operator>&&|\|\||;;?|&|\n|\||\(|\)|[{}](?=\s|$))
    | (?P<redirect>[0-9]?(?:>>|>&|>|<<|<)) | (?P<word>(?:\\.|'[^']*'|"(?:\\.|[^"\\])*"|[^\s;&|<>()'"\\])+)""",
    re.VERBOSE | re.DOTALL,
)
_PIECE = re.compile(
    r"""'(?P<raw>[^']*)' | "(?P<quoted>(?:\\.|[^"\\])*)" | \\(?P<escaped>.) | (?P<plain>[^'"\\]+)""",
    re.VERBOSE | re.DOTALL,
)
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+)|([?$#@]))")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_UNKNOWN = frozenset(
    ("if", "then", "for", "while", "until", "case", "do", "done", "fi", "{", "}", "(", ")", "|", ";;", "!")
)
SYNTAX = 2


class _SyntaxError(Exception):
    """Unsupported syntax."""


class _ExitError(Exception):
    """`exit`."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


@dataclass(slots=True)
class _Step:
    words: list[str] = field(default_factory=list)
    redirects: list[tuple[str, str]] = field(default_factory=list)
    after: str = ";"
    """The operator that follows."""


@dataclass(slots=True)
class _Shell:
    call: Call
    name: str
    args: tuple[str, ...]
    variables: dict[str, str]
    exported: dict[str, str]
    cwd: str
    last: int = 0


async def run_text(call: Call, text: str, *, name: str, args: tuple[str, ...] = ()) -> int:
    """Run a script; returns its exit code."""
    state = _Shell(call, name, args, {}, dict(call.env), call.cwd)
    try:
        commands = _parse(text)
        await _run_all(state, commands)
    except _SyntaxError as error:
        call.err(f"{name}: the memory backend's shell does not know {error}\n")
        return SYNTAX
    except _ExitError as end:
        return end.code
    return state.last


def _parse(text: str) -> list[_Step]:
    commands, current, position, redirect = [], _Step(), 0, ""
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None:
            raise _SyntaxError(repr(text[position : position + 20]))
        position, kind, token = found.end(), found.lastgroup, found[0]
        if kind == "space":
            continue
        if kind == "redirect":
            redirect = token
        elif redirect:
            if kind != "word" or redirect.endswith("<<"):
                raise _SyntaxError(f"{redirect} {token!r}")
            current.redirects.append((redirect, token))
            redirect = ""
        elif (token in _UNKNOWN and (kind == "operator" or not current.words)) or "`" in token or "$(" in token:
            raise _SyntaxError(repr(token))
        elif kind == "word":
            current.words.append(token)
        else:
            current.after = token
            if current.words or current.redirects:
                commands.append(current)
            current = _Step()
    if current.words or current.redirects:
        commands.append(current)
    return commands


async def _run_all(state: _Shell, commands: list[_Step]) -> None:
    before = ";"
    for command in commands:
        wanted = (before != "&&" or state.last == 0) and (before != "||" or state.last != 0)
        if wanted:
            state.last = await _run_one(state, command)
        before = command.after


async def _run_one(state: _Shell, command: _Step) -> int:
    words = [_expand(state, word) for word in command.words]
    words = [word for word, raw in zip(words, command.words, strict=True) if word or raw[0] in "'\""]
    assignments: dict[str, str] = {}
    while words and (found := _ASSIGNMENT.fullmatch(words[0])):
        assignments[found[1]] = found[2]
        words.pop(0)
    if not words:
        for name, value in assignments.items():
            (state.exported if name in state.exported else state.variables)[name] = value
        return 0
    env = {**state.exported, **assignments}
    call = replace(state.call, argv=tuple(words), env=env, cwd=state.cwd, code=None, language=None)
    written: dict[str, bytearray] = {}
    try:
        call = await _redirect(state, call, command, written)
    except CorralError as error:
        call.err(f"{state.name}: {error.message}\n")
        return SYNTAX
    if command.after == "&":
        state.call.spawn(call)
        return 0
    builtin = _BUILTINS.get(words[0])
    code = builtin(state, call) if builtin else await state.call.run(call)
    for path, content in written.items():
        await call.files.write(path, bytes(content))
    return code


async def _redirect(state: _Shell, call: Call, command: _Step, written: dict[str, bytearray]) -> Call:
    sinks: dict[StreamName, Callable[[bytes], object]] = {
        "stdout": lambda data: state.call.feed("stdout", data),
        "stderr": lambda data: state.call.feed("stderr", data),
    }
    for operator, raw in command.redirects:
        word = _expand(state, raw)
        if operator.endswith("<"):
            source = Input()
            source.feed(await call.files.read(posixpath.join(state.cwd, word)))
            source.feed(None)
            call.stdin = source
            continue
        stream: StreamName = "stderr" if operator.startswith("2") else "stdout"
        if operator.endswith(">&"):
            sinks[stream] = sinks["stdout" if word == "1" else "stderr"]
        elif word == "/dev/null":
            sinks[stream] = lambda data: None
        else:
            path = posixpath.join(state.cwd, word)
            keep = operator.endswith(">>") and await call.files.exists(path)
            written[path] = bytearray(await call.files.read(path) if keep else b"")
            await call.files.write(path, bytes(written[path]))
            sinks[stream] = written[path].extend
    call.feed = lambda stream, data: sinks[stream](data)
    return call


def _expand(state: _Shell, word: str) -> str:
    """Remove quotes and substitute variables."""
    parts = []
    for piece in _PIECE.finditer(word):
        if piece["raw"] is not None:
            parts.append(piece["raw"])
        elif piece["escaped"] is not None:
            parts.append(piece["escaped"])
        elif piece["quoted"] is not None:
            parts.append(re.sub(r'\\([$`"\\])', r"\1", _substitute(state, piece["quoted"])))
        else:
            parts.append(_substitute(state, piece["plain"]))
    return "".join(parts)


def _substitute(state: _Shell, text: str) -> str:
    def value(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        if name is None:
            special = {
                "?": str(state.last),
                "$": str(state.call.pid),
                "#": str(len(state.args)),
                "@": " ".join(state.args),
            }
            return special[found[3]]
        if name.isdigit():
            return (state.name, *state.args)[int(name)] if int(name) <= len(state.args) else ""
        return state.variables.get(name, state.exported.get(name, ""))

    return _VARIABLE.sub(value, text)


# Built into the shell, because they change it or its process.


def _cd(state: _Shell, call: Call) -> int:
    goal = posixpath.normpath(posixpath.join(state.cwd, call.argv[1] if len(call.argv) > 1 else state.exported["HOME"]))
    try:
        kind = call.tree.existing(goal)[1].kind
    except OSError:
        kind = "other"
    if kind != "folder":
        call.err(f"{state.name}: cd: can't cd to {goal}\n")
        return SYNTAX
    state.cwd = goal
    return 0


def _exit(state: _Shell, call: Call) -> int:
    text = call.argv[1] if len(call.argv) > 1 else str(state.last)
    raise _ExitError(int(text) & 0xFF if text.isdigit() else SYNTAX)


def _export(state: _Shell, call: Call) -> int:
    for word in call.argv[1:]:
        name, equals, value = word.partition("=")
        state.exported[name] = value if equals else state.variables.get(name, "")
    return 0


def _kill(state: _Shell, call: Call) -> int:
    """A shell can only kill itself: the memory backend has no other processes."""
    words = [word for word in call.argv[1:] if word != "-s"]
    name = words[0].lstrip("-").removeprefix("SIG") if len(words) == 2 else "TERM"
    try:
        number = int(name) if name.isdigit() else int(getattr(signal, f"SIG{name}"))
    except AttributeError:
        number = 0
    if not number or words[-1:] != [str(call.pid)]:
        call.err("kill: no such process\n")
        return 1
    raise KilledError(number)


class KilledError(Exception):
    """The program killed itself with a signal."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


_BUILTINS: dict[str, Callable[[_Shell, Call], int]] = {
    "cd": _cd,
    "exit": _exit,
    "export": _export,
    "kill": _kill,
    ":": lambda state, call: 0,
}
