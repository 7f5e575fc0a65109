"""What a restricted shell tool lets through: by the words of a command, before anything is run.

A restricted command is split into words and run without a shell, so that nothing in it means more than it says. That
keeps an honest model on its way. A program that starts others (`env`, `find -exec`) can still go round words; what
stops it is the view of the kernel, in `corral.tools.view`.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from corral.errors import PolicyError
from corral.tools.permission import compile_pattern

READONLY_COMMANDS = (
    "cat",
    "head",
    "tail",
    "ls",
    "grep",
    "egrep",
    "fgrep",
    "wc",
    "du",
    "df",
    "diff",
    "stat",
    "which",
    "pwd",
    "echo",
    "printenv",
    "cut",
)
"""What `readonly` allows where nothing else is said."""

RUNNERS = frozenset(
    {"sh", "bash", "dash", "zsh", "ksh", "ash", "fish", "busybox", "toybox", "env", "xargs", "nohup", "timeout", "nice"}
    | {"ionice", "setsid", "stdbuf", "time", "sudo", "doas", "su", "chroot", "unshare", "nsenter", "setpriv", "watch"}
    | {"script", "parallel", "exec", "command", "eval", "flock", "strace", "perl", "python", "python3", "ruby", "node"}
)
"""Programs that run other programs: their other words are looked at, too."""

_SYNTAX = ("\n", "\r", "`", "$(", ">", "<", "|", ";", "&")


@dataclass(frozen=True, slots=True)
class ShellPolicy:
    """The rules of a shell tool. Any of them makes it restricted.

    - `allowed`: patterns of words, of which one must begin the command: `"git log"`, `"npm run *"`.
    - `blocked`: patterns that must not; a program is meant by its path as well.
    - `ignore`: paths that must not be named, in the way of `.gitignore`; and nothing outside the working folder may be.
    - `readonly`: nothing may be written. Without `allowed`, only `READONLY_COMMANDS` are.
    """

    allowed: tuple[str, ...] | None = None
    blocked: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    readonly: bool = False

    @classmethod
    def of(
        cls,
        *,
        allowed: Sequence[str] | None = None,
        blocked: Sequence[str] | None = None,
        ignore: Sequence[str] | None = None,
        readonly: bool = False,
    ) -> ShellPolicy:
        """From whatever sequences a caller has."""
        for name, value in (("allowed", allowed), ("blocked", blocked), ("ignore", ignore)):
            if isinstance(value, str):
                raise TypeError(f"{name} is a list of patterns, not a text")
        return cls(tuple(allowed) if allowed is not None else None, tuple(blocked or ()), tuple(ignore or ()), readonly)

    @property
    def restricted(self) -> bool:
        """Whether there is any rule."""
        return self.allowed is not None or bool(self.blocked) or bool(self.ignore) or self.readonly

    @property
    def commands(self) -> tuple[str, ...] | None:
        """The patterns of which one must match; None if any command may run."""
        if self.allowed is None and self.readonly:
            return READONLY_COMMANDS
        return self.allowed

    def check(self, command: str, *, workdir: str) -> list[str]:
        """The words to run.

        Raises:
            PolicyError: with the text that a model is told.
        """
        argv = split_command(command)
        if not argv or any(self._blocks(argv, pattern) for pattern in self.blocked):
            raise PolicyError(f"Command not allowed: {command!r}")
        commands = self.commands
        if commands is not None and not any(match_words(pattern, argv) for pattern in commands):
            raise PolicyError(f"Command not allowed: {command!r}")
        for path in self.name_paths(argv, workdir=workdir):
            self.check_path(path, workdir=workdir)
        return argv

    def _blocks(self, argv: Sequence[str], pattern: str) -> bool:
        program = posixpath.basename(argv[0])
        if match_words(pattern, argv) or match_words(pattern, [program, *argv[1:]]):
            return True
        # A program that starts others may name the blocked one anywhere, in a text for a shell too.
        runs_others = program in RUNNERS or any(word.startswith(("-exec", "-ok")) for word in argv)
        if not runs_others or len(pattern.split()) != 1:
            return False
        words = {posixpath.basename(word) for text in argv[1:] for word in re.split(r"[\s;&|()<>`$'\"{}=]+", text)}
        return any(fnmatchcase(word, pattern) for word in words if word)

    def name_paths(self, argv: Sequence[str], *, workdir: str) -> list[str]:
        """Every path that a word may mean, absolute, where `ignore` asks for it."""
        if not self.ignore:
            return []
        found: list[str] = []
        for index, word in enumerate(argv):
            if index == 0 and "/" not in word:
                continue
            named = [word]
            if word.startswith("-"):
                # "--file=x", and options with their value glued to them: "-fx".
                named = [word[2:]] if not word.startswith("--") and len(word) > 2 else []
            if "=" in word:
                named.append(word.partition("=")[2])
            found += [posixpath.normpath(posixpath.join(workdir, name)) for name in named if name]
        return list(dict.fromkeys(found))

    def check_path(self, path: str, *, workdir: str) -> None:
        """Judge one absolute path, as named or as it really is. Raises: PolicyError."""
        if not self.ignore:
            return
        root = workdir.rstrip("/")
        if path != workdir and not path.startswith(f"{root}/"):
            raise PolicyError(f"Access denied: {path}")
        if self.ignores(path, workdir=workdir):
            raise PolicyError(f"Access denied: {path}")

    def ignores(self, path: str, *, workdir: str) -> bool:
        """Whether a rule means this path, or a folder above it."""
        parts = posixpath.relpath(path, workdir).split("/")
        for end in range(1, len(parts) + 1):
            relative = "/".join(parts[:end])
            absolute = posixpath.join(workdir, relative)
            if any(_means(pattern, relative, absolute) for pattern in self.ignore):
                return True
        return False


def _means(pattern: str, relative: str, absolute: str) -> bool:
    if pattern.startswith("/"):
        return compile_pattern(pattern.rstrip("/") or "/").fullmatch(absolute) is not None
    bare = pattern.strip("/").removeprefix("./")
    if "/" not in bare:
        return compile_pattern(bare).fullmatch(posixpath.basename(relative)) is not None
    return compile_pattern(bare).fullmatch(relative) is not None


def match_words(pattern: str, argv: Sequence[str]) -> bool:
    """Whether a command begins with the words of a pattern; `*` stands for any part of a word."""
    words = pattern.split()
    return bool(words) and len(words) <= len(argv) and all(map(fnmatchcase, argv, words))


def split_command(command: str) -> list[str]:
    """The words of a command that uses nothing of a shell but quotes.

    Raises:
        PolicyError: it uses more.
    """
    if _has_syntax(command):
        raise PolicyError(f"Command not allowed (shell syntax is not available in restricted mode): {command!r}")
    try:
        return shlex.split(command)
    except ValueError as error:
        raise PolicyError(f"Command not allowed (unbalanced quotes): {command!r}") from error


def _has_syntax(command: str) -> bool:
    """Whether something stands outside quotes that only a shell understands."""
    quote = ""
    position = 0
    while position < len(command):
        character = command[position]
        if character == "\\" and quote != "'":
            position += 2
            continue
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif command.startswith(_SYNTAX, position):
            return True
        position += 1
    return False
