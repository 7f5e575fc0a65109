"""Names of programs: `perl5.36-x86_64-linux-gnu` is perl, and `perldoc` is not; and which programs start others.

Programs are blocked by name. So everything that a distribution adds to a program's name is ignored: the machine it is
built for, its version, and the kind of build.
"""

from __future__ import annotations

import functools
import re

from corral.tools.permission import translate_glob

_RUNNERS = frozenset(
    {"sh", "bash", "dash", "zsh", "ksh", "ash", "fish", "busybox", "toybox", "env", "xargs", "nohup", "timeout", "nice"}
    | {"ionice", "setsid", "stdbuf", "time", "sudo", "doas", "su", "chroot", "unshare", "nsenter", "setpriv", "watch"}
    | {"script", "parallel", "exec", "command", "eval", "flock", "strace", "perl", "python", "pypy", "ruby", "node"}
    | {"awk", "php", "lua", "luajit", "tclsh", "expect", "gdb", "make", "vi", "vim", "ed", "ssh", "run-parts"}
)
"""Programs that run other programs: their arguments are checked too."""

_LOADER = re.compile(r"ld(-[^/]*)?\.so(\.\d+)*")
_ALIASES = {"node": ("nodejs",), "nodejs": ("node",), "awk": ("gawk", "mawk", "nawk", "original-awk")}
"""A name → other names that it includes. Blocking `awk` blocks all of them; blocking `gawk` blocks only gawk."""
_MACHINE = r"[a-z][a-z0-9_]*(?:-[a-z0-9_]+)?-(?:linux(?:-(?:gnu|musl|uclibc|android)[a-z0-9_]*)?|mingw32|eabi[a-z]*)"
_ADDED = "|".join(
    (
        # A version: its first number; more numbers; alpha, beta, rc; Python's letters for a build.
        r"(?<!\d)-?\d+",
        r"(?<=\d)\.\d+",
        r"(?<=\d)-?(?:alpha|beta|rc)\d*",
        r"(?<=\d)[dmtu]{1,3}",
        # The kind of build, or the variant of a distribution.
        r"[-.](?:static|dbg|debug|real|distrib|minimal|multiarch|tiny|basic|nox|gtk|athena|openbsd|traditional)",
        rf"-{_MACHINE}",
    )
)
_LONGEST_NAME = 255
"""A longer word can't be a file name, and would take long to compare."""


def is_loader(name: str) -> bool:
    """True for the dynamic loader, which every program needs, and which is on PATH in some distributions.

    It can't run a hidden program.
    """
    return _LOADER.fullmatch(name) is not None


def is_runner(name: str) -> bool:
    """True if a program of this name starts others."""
    return len(name) <= _LONGEST_NAME and (is_loader(name) or _compile(_RUNNERS).fullmatch(name) is not None)


def means_program(pattern: str, name: str) -> bool:
    """True if a pattern for names of programs matches the program of this name."""
    return len(name) <= _LONGEST_NAME and _compile(frozenset((pattern,))).fullmatch(name) is not None


@functools.lru_cache(maxsize=256)
def _compile(patterns: frozenset[str]) -> re.Pattern[str]:
    """One regular expression, for speed: a model may write a million words, and each is checked."""
    meant = sorted({name for pattern in patterns for name in (pattern, *_ALIASES.get(pattern, ()))})
    names = "|".join(map(translate_glob, meant))
    return re.compile(f"(?:{_MACHINE}-)?(?:{names})(?:{_ADDED})*")
