"""What a program lacked, and how its reader gets it, in one line: a host that was refused, or a module that is missing.

A missing module is read from what the program printed, which may be anything: only plain names are repeated.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from corral.base.denials import NEW_SANDBOX_FLAG, Door, describe_denials
from corral.results import Denial, ExecResult
from corral.spec import NetworkPolicy

_TAIL = 4096
_PYTHON = re.compile(
    r"(?:^ModuleNotFoundError|^\S*python[\d.]*): No module named '?([A-Za-z_]\w{0,99})[\w.]*'?$", re.MULTILINE
)
_NODE = re.compile(r"Cannot find (?:module|package) '((?:@[a-z0-9._-]{1,99}/)?[a-z0-9][a-z0-9._-]{0,99})'")
_WITH_REGISTRIES = ("packages", "open")


def describe_needs(
    result: ExecResult, policy: NetworkPolicy, *, door: Door = "library", flag: str = NEW_SANDBOX_FLAG
) -> str:
    """One line without a line end, as `describe_denials` of what was refused; else about the module that a failed
    program did not find. Empty if it lacked nothing that is known here. `flag` is what takes a policy on the command
    line.
    """
    printed = "" if result.ok else result.stderr_bytes[-_TAIL:].decode("utf-8", "replace")
    return describe_lack(result.denied, printed, policy, door=door, flag=flag)


def describe_lack(
    denied: Sequence[Denial],
    printed: str,
    policy: NetworkPolicy,
    *,
    door: Door = "library",
    flag: str = NEW_SANDBOX_FLAG,
) -> str:
    """As `describe_needs`, of a program that failed after it had `printed` this; "" if it did not fail."""
    if line := describe_denials(denied, policy, door=door, flag=flag):
        return line
    tail = printed[-_TAIL:].rstrip()
    if found := _PYTHON.search(tail):
        ask = _ask_python(found[1], policy, door, flag)
        return f"python: there is no module {found[1]!r}; if it is a package, {ask}"
    if found := _NODE.search(tail):
        ask = _ask_node(found[1], policy, door, flag)
        return f"node: there is no module {found[1]!r}; if it is a package, {ask}"
    return ""


def _ask_python(name: str, policy: NetworkPolicy, door: Door, flag: str) -> str:
    if door == "command line" and flag == NEW_SANDBOX_FLAG:
        return f"add it with --package {name}"
    if door == "library":
        return f"add it with packages=[{name!r}]"
    return _ask(f"pip install {name}", policy, door, flag)


def _ask_node(name: str, policy: NetworkPolicy, door: Door, flag: str) -> str:
    return _ask(f"npm install {name}", policy, door, flag)


def _ask(command: str, policy: NetworkPolicy, door: Door, flag: str) -> str:
    if policy.mode in _WITH_REGISTRIES:
        return f"run {command} before it"
    if door == "model":
        return f"ask the user to add it, or to allow {command}"
    allow = f"{flag} packages" if door == "command line" else 'network="packages"'
    return f"run {command} before it, with {allow}"
