"""Which commands a restricted shell tool permits: the words of a command are checked before anything is run.

A restricted command is split into words and run without a shell, so that no shell syntax has an effect. That is enough
for an honest model. A program that starts others (`env`, `find -exec`) can still bypass the check; the view of the
kernel, in `corral.tools.view`, stops it.
"""

from __future__ import annotations

import functools
import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from corral.errors import PolicyError
from corral.tools.concealment import is_below
from corral.tools.permission import compile_pattern, expand_braces, refuse_tilde
from corral.tools.programs import is_runner, means_program

READONLY_COMMANDS = (
    "cat", "head", "tail", "ls", "grep", "egrep", "fgrep", "wc", "du", "df", "diff", "stat", "which", "pwd", "echo",
    "printenv", "cut",
)  # fmt: skip
"""The commands that `readonly` allows without `allowed`."""

_MOST_WORDS = 1000
_MOST_FOLDERS = 10_000
_LONGEST_PATH, _LONGEST_NAME = 4095, 255


@dataclass(frozen=True, slots=True)
class ShellPolicy:
    """The rules of a shell tool. Any rule makes the tool restricted.

    - `allowed`: patterns of words; a command must begin with one of them: `"git log"`, `"npm run *"`.
    - `blocked`: patterns that no command may begin with. A program is also matched by its path, and by names with its
      version or machine: `perl` is also `perl5.36.0` and `perl5.36-x86_64-linux-gnu`.
    - `ignore`: paths that a command must not name, as in `.gitignore` (a pattern that begins with `/` is matched from
      the working folder and from the root). Paths outside the working folder must not be named either.
    - `readonly`: nothing may be written. Without `allowed`, only `READONLY_COMMANDS` are permitted.
    """

    allowed: tuple[str, ...] | None = None
    blocked: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    readonly: bool = False

    def __post_init__(self) -> None:
        for pattern in self.ignore:
            read_ignore(pattern)  # raises for an invalid pattern

    @classmethod
    def of(
        cls,
        *,
        allowed: Sequence[str] | None = None,
        blocked: Sequence[str] | None = None,
        ignore: Sequence[str] | None = None,
        readonly: bool = False,
    ) -> ShellPolicy:
        """The policy with these rules, from any kind of sequence. Raises: TypeError, ValueError."""
        for name, value in (("allowed", allowed), ("blocked", blocked), ("ignore", ignore)):
            if isinstance(value, str):
                raise TypeError(f"{name} must be a list of patterns, not a string")
        return cls(tuple(allowed) if allowed is not None else None, tuple(blocked or ()), tuple(ignore or ()), readonly)

    @property
    def restricted(self) -> bool:
        """True if there is any rule."""
        return self.allowed is not None or bool(self.blocked) or bool(self.ignore) or self.readonly

    @property
    def commands(self) -> tuple[str, ...] | None:
        """The patterns that are allowed; None if any command may run."""
        if self.allowed is None and self.readonly:
            return READONLY_COMMANDS
        return self.allowed

    def lets(self, program: str) -> bool:
        """True if a program of this name may run, with any arguments."""
        return self._permits([program])

    def _permits(self, argv: Sequence[str]) -> bool:
        if any(self._blocks(argv, pattern) for pattern in self.blocked):
            return False
        return self.commands is None or any(match_words(pattern, argv) for pattern in self.commands)

    def check(self, command: str, *, workdir: str) -> list[str]:
        """The words of a permitted command.

        Raises:
            PolicyError: the command is not permitted; the message is for the model.
        """
        argv = split_command(command)
        if not argv or not self._permits(argv):
            raise PolicyError(f"Command not allowed: {command!r}")
        for path in self.name_paths(argv, workdir=workdir):
            self.check_path(path, workdir=workdir)
        return argv

    def _blocks(self, argv: Sequence[str], pattern: str) -> bool:
        program = posixpath.basename(argv[0])
        first, *others = pattern.split() or [""]
        if match_words(pattern, argv) or (means_program(first, program) and _match_begin(others, argv[1:])):
            return True
        # A program that starts others may name the blocked one in any argument, also in a text for a shell.
        runs_others = is_runner(program) or any(word.startswith(("-exec", "-ok")) for word in argv)
        if not runs_others or len(pattern.split()) != 1:
            return False
        words = {posixpath.basename(word) for text in argv[1:] for word in re.split(r"[\s;&|()<>`$'\"{}=]+", text)}
        return any(means_program(pattern, word) for word in words if word)

    def name_paths(self, argv: Sequence[str], *, workdir: str) -> list[str]:
        """With `ignore`, every path that a word may mean, absolute. Raises: PolicyError for too many."""
        if not self.ignore:
            return []
        if len(argv) > _MOST_WORDS:  # each may need several calls to the sandbox
            raise PolicyError(f"Command not allowed (more than {_MOST_WORDS} words)")
        found: list[str] = []
        for index, word in enumerate(argv):
            if index == 0 and "/" not in word:
                continue
            named = [word]
            if word.startswith("-"):
                # "--file=x", and short options followed by their value: "-fx", "-rfx".
                glued = re.match(r"-[A-Za-z0-9]{0,20}", word)
                last = glued.end() if glued is not None and not word.startswith("--") else 0
                named = [word[start:] for start in range(2, last + 1)]
            if "=" in word:
                named.append(word.partition("=")[2])
            found += [posixpath.normpath(posixpath.join(workdir, name)) for name in named if name]
        paths = [path for path in dict.fromkeys(found) if _can_exist(path)]
        if sum(path.count("/") for path in paths) > _MOST_FOLDERS:
            raise PolicyError("Command not allowed (its paths are too deep)")
        return paths

    def check_path(self, path: str, *, workdir: str) -> None:
        """Check an absolute path, as named or with links followed. Raises: PolicyError."""
        if not self.ignore:
            return
        if not is_below(path, workdir) or self.ignores(path, workdir=workdir):
            raise PolicyError(f"Access denied: {path}")

    def ignores(self, path: str, *, workdir: str) -> bool:
        """True if a pattern of `ignore` matches this path, or a folder above it."""
        parts = posixpath.relpath(path, workdir).split("/")
        ignored = [one for pattern in self.ignore for one in read_ignore(pattern)]
        for end in range(1, len(parts) + 1):
            relative = "/".join(parts[:end])
            absolute = posixpath.normpath(posixpath.join(workdir, relative))
            if any(one.means(relative, absolute) for one in ignored):
                return True
        return False


def _can_exist(path: str) -> bool:
    """True if the kernel accepts it as a path. A longer text is no path, and would take long to check."""
    return len(path) <= _LONGEST_PATH and all(len(name) <= _LONGEST_NAME for name in path.split("/"))


@dataclass(frozen=True, slots=True)
class Ignored:
    """One pattern of `ignore`, without braces: for a name anywhere, or a path from the working folder or the root."""

    pattern: str
    kind: Literal["name", "relative", "absolute"]

    def means(self, relative: str, absolute: str) -> bool:
        """True if the pattern matches this path itself."""
        against = {"name": posixpath.basename(relative), "relative": relative, "absolute": absolute}
        return compile_pattern(self.pattern).fullmatch(against[self.kind]) is not None


@functools.lru_cache(maxsize=256)
def read_ignore(pattern: str) -> tuple[Ignored, ...]:
    """A pattern of `ignore`, parsed; empty for an empty pattern.

    Raises:
        ValueError: it matches everything, begins with `~`, or has too many braces.
    """
    if not pattern.strip():
        return ()
    spelt = expand_braces(pattern)
    if spelt == (pattern,) and re.search(r"\{[^{}]*,[^{}]*\}", pattern):
        raise ValueError(f"ignore={pattern!r} has too many braces; write several patterns")
    found: list[Ignored] = []
    for one in spelt:
        refuse_tilde(one, f"ignore={pattern!r}")
        normal = posixpath.normpath(one)
        bare = normal.lstrip("/")
        if bare in ("", "."):
            raise ValueError(f"ignore={pattern!r} matches the whole working folder")
        if one.startswith("/"):
            found += [Ignored(f"/{bare}", "absolute"), Ignored(bare, "relative")]
        else:
            found.append(Ignored(bare, "relative" if "/" in bare else "name"))
    return tuple(found)


def match_words(pattern: str, argv: Sequence[str]) -> bool:
    """True if a command begins with the words of a pattern; `*` matches any part of a word."""
    words = pattern.split()
    return bool(words) and _match_begin(words, argv)


def _match_begin(words: Sequence[str], argv: Sequence[str]) -> bool:
    return len(words) <= len(argv) and all(map(fnmatchcase, argv, words))


def split_command(command: str) -> list[str]:
    """The words of a command that uses no shell syntax but quotes, as `shlex.split` gives them.

    Takes linear time: a model may write megabytes, and this blocks the event loop.

    Raises:
        PolicyError: it uses shell syntax.
    """
    words: list[str] = []
    word: list[str] | None = None
    is_closed = True
    for piece in _PIECE.finditer(command):
        text, kind = piece[0], piece.lastgroup
        if kind in ("bare", "gap") and _SYNTAX.search(text):
            raise PolicyError(f"Command not allowed (shell syntax is not available in restricted mode): {command!r}")
        if kind == "gap":
            words += ["".join(word)] if word is not None else []
            word = None
            continue
        word = [] if word is None else word
        is_closed = is_closed and kind != "open"
        if kind in ("single", "double"):
            text = text[1:-1]
        word.append(_ESCAPED_IN_QUOTES.sub(r"\1", text) if kind == "double" else text[kind == "escaped" :])
    if not is_closed:
        raise PolicyError(f"Command not allowed (unbalanced quotes): {command!r}")
    return [*words, "".join(word)] if word is not None else words


_PIECE = re.compile(
    r"""(?P<gap>[ \t\r\n]+)|(?P<bare>[^ \t\r\n'"\\]+)|(?P<escaped>\\.)"""
    r"""|(?P<single>'[^']*')|(?P<double>"[^"\\]*(?:\\.[^"\\]*)*")|(?P<open>['"\\].*)""",
    re.DOTALL,
)
_ESCAPED_IN_QUOTES = re.compile(r"""\\(["\\])""")
_SYNTAX = re.compile(r"[\n\r`><|;&]|\$\(")
"""Shell syntax, if it is not quoted."""
