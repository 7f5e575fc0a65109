"""Views of single calls: the arguments of `enter`, its answers, and the filter rules that let it alone make views.

`enter` (enter.c) starts a program in a new mount namespace. It is our one file inside, in a volume that no container
can write to, and the one program that runs there with privileges, which it drops before it becomes the program.
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
from corral.backends.docker.insidescripts import escape, part_env
from corral.errors import CapabilityError, CorralError, ExecError, InvalidCommandError, WorkdirError
from corral.protocol import SpawnRequest

FOLDER = "/.corral"
ENTER = f"{FOLDER}/enter"
READY = f"{FOLDER}/ready"
"""Written last: if it exists, the volume is complete."""
KEY_VARIABLE = "CORRAL_VIEW_KEY"
ROOT = "0:0"
"""By number, because names are looked up in a file inside."""
_GUARDED = ("mount_setattr", "move_mount", "open_tree", "unshare")
_KEY_ARGUMENT = 5
"""The index of the key: an argument that these calls do not have, so the kernel ignores it. The filter checks it."""
_ARCHITECTURES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}


@dataclass(frozen=True, slots=True)
class Who:
    """A user, as the daemon resolves its name."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str


# What is put into the volume.


def read_enter(architecture: str) -> bytes | None:
    """`enter` for the architecture of a daemon's machine, None if it is not built for that."""
    known = _ARCHITECTURES.get(architecture)
    return None if known is None else (files("corral.backends.docker") / f"enter-{known}").read_bytes()


@cache
def find_version() -> str:
    """The version of the volume's content; each version has its own volume."""
    found = hashlib.sha256()
    for name in sorted(set(_ARCHITECTURES.values())):
        found.update(read_enter(name) or b"")
    return found.hexdigest()[:16]


def make_volume_name() -> str:
    """The name of this version's volume."""
    return f"corral-enter-{find_version()}"


def make_mount(*, writable: bool = False) -> dict[str, Any]:
    """The mount of the volume, which the daemon creates if it does not exist."""
    return {
        "Type": "volume", "Source": make_volume_name(), "Target": FOLDER, "ReadOnly": not writable,
        "VolumeOptions": {"NoCopy": True},
    }  # fmt: skip


def pack(program: bytes) -> bytes:
    """The volume's content: the program, an empty file and an empty folder to lay over what is hidden."""
    # A process whose program its user may not read can't be traced by that user: so what `enter` says of it is true.
    return make_tar(
        (make_entry("enter", mode=0o111, size=len(program)), program),
        (make_entry("file", mode=0o444, size=0), b""),
        (make_entry("folder", mode=0, size=None), b""),
        (make_entry("ready", mode=0o444, size=0), b""),
    )


# The filter.


def make_key() -> str:
    """The key of one container. Nothing inside can read it, and without it the calls that make views are refused."""
    return f"{secrets.randbits(63):016x}"


def open_to_key(profile: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The same filter, but it lets calls with the key make views."""
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


# Its arguments and answers.


def ask_who(token: str) -> tuple[str, ...]:
    """The argv that prints who a user is, to be run as that user."""
    return (ENTER, "whoami", token)


def parse_who(said: bytes, token: str) -> Who | None:
    """The answer to `ask_who`, None if it is malformed."""
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
        InvalidCommandError: together they exceed the kernel's limit.
    """
    odd, plain = part_env(request)
    flags = f"-{'' if request.stdin or request.pty else 'n'}{'t' if request.pty else ''}"
    words = (request.cwd, str(len(request.read_only)), str(len(request.hidden)), str(len(odd)), *request.read_only,
             *request.hidden, *odd, *request.argv)  # fmt: skip
    argv = (
        ENTER, "view", token, str(who.uid), str(who.gid), ",".join(map(str, who.groups)), flags, str(request.rows),
        str(request.columns), *(escape(word, "\\") for word in words),  # the daemon's JSON can't carry other bytes
    )  # fmt: skip
    home = {"HOME": who.home} if "HOME" not in request.env and who.home else {}
    return argv, {**home, **plain, KEY_VARIABLE: key}


def explain(answer: Sequence[str], request: SpawnRequest, *, sandbox_id: str | None) -> CorralError:
    """Why `enter` did not start the program, from the words after the token."""
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
