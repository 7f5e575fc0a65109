"""Names of programs: `perl5.36-x86_64-linux-gnu` is perl, and `perldoc` is not; and which programs start others.

A list of blocked programs is a list of names. So whatever a distribution adds to the name of a program is taken off
again: the machine it is made for, its version, how it was built.
"""

from __future__ import annotations

import functools
import re
from fnmatch import translate

_RUNNERS = frozenset(
    {"sh", "bash", "dash", "zsh", "ksh", "ash", "fish", "busybox", "toybox", "env", "xargs", "nohup", "timeout", "nice"}
    | {"ionice", "setsid", "stdbuf", "time", "sudo", "doas", "su", "chroot", "unshare", "nsenter", "setpriv", "watch"}
    | {"script", "parallel", "exec", "command", "eval", "flock", "strace", "perl", "python", "pypy", "ruby", "node"}
    | {"awk", "php", "lua", "luajit", "tclsh", "expect", "gdb", "make", "vi", "vim", "ed", "ssh", "run-parts"}
)
"""Programs that run other programs: their other words are looked at, too."""

_LOADER = re.compile(r"ld(-[^/]*)?\.so(\.\d+)*")
_ALIASES = {"node": ("nodejs",), "nodejs": ("node",), "awk": ("gawk", "mawk", "nawk", "original-awk")}
"""A name → what else it means. Blocking `awk` blocks each of them; blocking `gawk` blocks only that one."""
_MACHINE = r"[a-z][a-z0-9_]*(?:-[a-z0-9_]+)?-(?:linux(?:-(?:gnu|musl|uclibc|android)[a-z0-9_]*)?|mingw32|eabi[a-z]*)"
_ADDED = "|".join(
    (
        # A version: its first number, which belongs to no number before it; more of it; Python's letters for a build.
        r"(?<!\d)-?\d+",
        r"(?<=\d)\.\d+",
        r"(?<=\d)-?(?:alpha|beta|rc)\d*",
        r"(?<=\d)[dmtu]{1,3}",
        # How it was built, and which of several that a distribution has.
        r"[-.](?:static|dbg|debug|real|distrib|minimal|multiarch|tiny|basic|nox|gtk|athena|openbsd|traditional)",
        rf"-{_MACHINE}",
    )
)
_LONGEST_NAME = 255
"""A longer word can't be a file name, and would take long to compare."""


def is_loader(name: str) -> bool:
    """Whether it is the dynamic loader, which starts every other program and has a name on PATH in some distributions.

    Alone it runs nothing that is hidden.
    """
    return _LOADER.fullmatch(name) is not None


def is_runner(name: str) -> bool:
    """Whether it is a program that starts others, by whichever of its names."""
    return len(name) <= _LONGEST_NAME and (is_loader(name) or _compile(_RUNNERS).fullmatch(name) is not None)


def means_program(pattern: str, name: str) -> bool:
    """Whether a pattern for names of programs means the program of this name."""
    return len(name) <= _LONGEST_NAME and _compile(frozenset((pattern,))).fullmatch(name) is not None


@functools.lru_cache(maxsize=256)
def _compile(patterns: frozenset[str]) -> re.Pattern[str]:
    """One expression, instead of taking names apart: a model may write a million words, each of which is asked for."""
    meant = sorted({name for pattern in patterns for name in (pattern, *_ALIASES.get(pattern, ()))})
    # `translate` ends with an anchor, whose letter depends on Python's version.
    names = "|".join(re.sub(r"\\[Zz]$", "", translate(name)) for name in meant)
    return re.compile(f"(?:{_MACHINE}-)?(?:{names})(?:{_ADDED})*")
