"""Views of single calls: what `enter` is told, what it answers, and what of the filter opens to it alone.

`enter` (enter.c) begins a program in a mount namespace of its own. It is the one thing of ours inside, in a volume that
no container can write to, and the one thing that is run there with privileges, which it gives up before the program.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from corral.backends.docker.engine_api import make_entry, make_tar
from corral.backends.docker.insidescripts import part_env
from corral.errors import CapabilityError, CorralError, ExecError, InvalidCommandError, WorkdirError
from corral.protocol import SpawnRequest

FOLDER = "/.corral"
ENTER = f"{FOLDER}/enter"
READY = f"{FOLDER}/ready"
"""Laid down last: then the rest is there."""
KEY_VARIABLE = "CORRAL_VIEW_KEY"
ROOT = "0:0"
"""By number: what the names are is up to a file inside."""
_GUARDED = ("mount_setattr", "move_mount", "open_tree", "unshare")
_KEY_ARGUMENT = 5
"""Beyond the arguments of each of them. The kernel does not look at it, and the filter does."""
_ARCHITECTURES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}


@dataclass(frozen=True, slots=True)
class Who:
    """What the daemon makes of a user's name."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str


# What is put into the volume.


def read_enter(architecture: str) -> bytes | None:
    """The program for a daemon's machine, None if there is none."""
    known = _ARCHITECTURES.get(architecture)
    return None if known is None else (files("corral.backends.docker") / f"enter-{known}").read_bytes()


@cache
def find_version() -> str:
    """Of all that is put inside: another version is another volume."""
    found = hashlib.sha256()
    for name in sorted(set(_ARCHITECTURES.values())):
        found.update(read_enter(name) or b"")
    return found.hexdigest()[:16]


def make_volume_name() -> str:
    """The volume of this version."""
    return f"corral-enter-{find_version()}"


def make_mount(*, writable: bool = False) -> dict[str, Any]:
    """Of the volume, which the daemon makes if it is not there."""
    return {
        "Type": "volume", "Source": make_volume_name(), "Target": FOLDER, "ReadOnly": not writable,
        "VolumeOptions": {"NoCopy": True},
    }  # fmt: skip


def pack(program: bytes) -> bytes:
    """The volume's content: the program, an empty file and an empty folder to lay over what is hidden."""
    # Who runs what he may not read can't be looked into by others of his own: what `enter` says of a user is true.
    return make_tar(
        (make_entry("enter", mode=0o111, size=len(program)), program),
        (make_entry("file", mode=0o444, size=0), b""),
        (make_entry("folder", mode=0, size=None), b""),
        (make_entry("ready", mode=0o444, size=0), b""),
    )


# The filter.


def make_key() -> str:
    """Of one container. Nothing inside can read it, and without it the calls that make views are refused."""
    return f"{secrets.randbits(63):016x}"


def open_to_key(profile: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The same filter, but for whoever knows the key."""
    rules = []
    for rule in profile["syscalls"]:
        names = [name for name in rule["names"] if name not in _GUARDED]
        if names:
            rules.append({**rule, "names": names})
    argument = {"index": _KEY_ARGUMENT, "value": int(key, 16), "valueTwo": 0}
    comment = "a view is made by `enter` alone, which has the key and the capability; see enter.c"
    rules += [
        {"names": list(_GUARDED), "action": "SCMP_ACT_ALLOW", "args": [{**argument, "op": "SCMP_CMP_EQ"}],
         "comment": comment},
        {"names": list(_GUARDED), "action": "SCMP_ACT_ERRNO", "errnoRet": errno.EPERM,
         "args": [{**argument, "op": "SCMP_CMP_NE"}], "comment": comment},
    ]  # fmt: skip
    return {**profile, "syscalls": rules}


# What it is told, and what it answers.


def ask_who(token: str) -> tuple[str, ...]:
    """The argv that says who a user is, run as that user."""
    return (ENTER, "whoami", token)


def parse_who(said: bytes, token: str) -> Who | None:
    """Its answer, None if there is none."""
    line = said.partition(b"\n")[0].decode("utf-8", "surrogateescape")
    words = line.split(" ", 4)
    if len(words) != 5 or words[0] != token:
        return None
    try:
        groups = tuple(int(word) for word in words[3].split(",") if word)
        return Who(int(words[1]), int(words[2]), groups, words[4])
    except ValueError:
        return None


def enter(request: SpawnRequest, who: Who, *, token: str, key: str) -> tuple[tuple[str, ...], dict[str, str]]:
    """The argv and the environment of a program with a view.

    Raises:
        InvalidCommandError: all together more than a kernel takes.
    """
    odd, plain = part_env(request)
    flags = f"-{'' if request.stdin or request.pty else 'n'}{'t' if request.pty else ''}"
    words = (request.cwd, str(len(request.read_only)), str(len(request.hidden)), str(len(odd)), *request.read_only,
             *request.hidden, *odd, *request.argv)  # fmt: skip
    argv = (
        ENTER, "view", token, str(who.uid), str(who.gid), ",".join(map(str, who.groups)), flags, str(request.rows),
        str(request.columns), *map(_escape, words),
    )  # fmt: skip
    home = {"HOME": who.home} if "HOME" not in request.env and who.home else {}
    return argv, {**home, **plain, KEY_VARIABLE: key}


def explain(answer: Sequence[str], request: SpawnRequest, *, sandbox_id: str | None) -> CorralError:
    """Why `enter` began no program, from the words after the token."""
    step, number, index = answer[0], int(answer[1]), int(answer[2])
    reason = os.strerror(number)
    if step == "cwd":
        return WorkdirError(f"can't run in {request.cwd!r}", sandbox_id=sandbox_id, op="exec", hint="create the folder")
    paths = {"read_only": request.read_only, "hidden": request.hidden}.get(step, ())
    if index < len(paths):
        text = f"can't create a restricted view: view path {paths[index]!r}: {reason}"
        return InvalidCommandError(text, sandbox_id=sandbox_id, op="exec")
    if step == "landlock":
        text = "the daemon's kernel has no Landlock, without which a restricted view can be bypassed"
        return CapabilityError(text, sandbox_id=sandbox_id, op="exec")
    return ExecError(f"can't create a restricted view: {step}: {reason}", sandbox_id=sandbox_id, op="exec")


def _escape(word: str) -> str:
    """The daemon's messages are JSON, which has no bytes that are not UTF-8."""
    return "".join(
        f"\\{ord(char) - 0xDC00:03o}" if "\udc80" <= char <= "\udcff" else "\\134" if char == "\\" else char
        for char in word
    )
