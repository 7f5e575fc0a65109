"""Requests for operations on files, as every file agent understands them: a message in, and an answer out.

A message is a JSON object `{"op": name, "path": …, …}`; what is long (texts, lists of paths) comes beside it as
payloads of bytes, in the order that the operation names. Operations that hand over open files or streams (read, write,
pack, unpack, watch) are the agents' own: they differ by what their wire can carry.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any, Callable, Dict

from corral.inside.files import edit, look, make_folder, move, remove
from corral.inside.search import Outcome, glob, grep, list_folder, replace

Message = Dict[str, Any]
Add = Callable[[Message], None]


def answer(message: Message, payloads: Sequence[bytes], add: Add) -> Message:
    """Do what a message asks for, and give the answer's last part; `add` is called with each of many results.

    Raises: KeyError for an unknown operation; else what `refusal.describe_refusal` describes.
    """
    operation = message["op"]
    if operation in QUICK:
        return QUICK[operation](message, payloads) or {}
    return SLOW[operation](message, payloads, add)


def _pick(message: Message, *names: str) -> Message:
    """The options among these that the message has."""
    return {name: message[name] for name in names if name in message}


# Quick ones.


def _stat(message: Message, payloads: Sequence[bytes]) -> Message:
    return {"stat": look(message["path"], **_pick(message, "follow", "links"))}


def _edit(message: Message, payloads: Sequence[bytes]) -> Message:
    """Payloads: the old text, the new one."""
    old, new = payloads
    return edit(message["path"], old, new, **_pick(message, "replace_all", "expected_sha256", "links"))


def _mkdir(message: Message, payloads: Sequence[bytes]) -> None:
    make_folder(message["path"], **_pick(message, "parents", "mode"))


def _link(message: Message, payloads: Sequence[bytes]) -> None:
    os.symlink(message["target"], message["path"])


def _move(message: Message, payloads: Sequence[bytes]) -> None:
    move(message["source"], message["target"], **_pick(message, "overwrite"))


def _chmod(message: Message, payloads: Sequence[bytes]) -> None:
    os.chmod(message["path"], message["mode"])


# Those that may take long.


def _list(message: Message, payloads: Sequence[bytes], add: Add) -> Message:
    for item in list_folder(message["path"], **_pick(message, "depth", "links")):
        add(item)
    return {}


def _glob(message: Message, payloads: Sequence[bytes], add: Add) -> Message:
    outcome = Outcome()
    options = _pick(message, "limit", "hidden", "linked", "links")
    return _give_all(glob(message["path"], message["pattern"], outcome=outcome, **options), outcome, add)


def _grep(message: Message, payloads: Sequence[bytes], add: Add) -> Message:
    """Payload, if any: the paths to leave out, with NULs between them."""
    outcome = Outcome()
    options = _pick(message, "limit", "include", "ignore_case", "fixed", "hidden", "links")
    without = frozenset(payloads[0].decode("utf-8", "surrogateescape").split("\0")) if payloads else frozenset()
    found = grep(message["path"], message["pattern"], outcome=outcome, without=without, **options)
    return _give_all(found, outcome, add)


def _replace(message: Message, payloads: Sequence[bytes], add: Add) -> Message:
    """Payload: the new text."""
    outcome = Outcome()
    options = _pick(message, "include", "ignore_case", "fixed", "hidden")
    done = replace(message["path"], message["pattern"], payloads[0], outcome=outcome, **options)
    return _give_all(done, outcome, add)


def _remove(message: Message, payloads: Sequence[bytes], add: Add) -> Message:
    remove(message["path"], **_pick(message, "recursive"))
    return {}


def _give_all(found: Iterable[Message], outcome: Outcome, add: Add) -> Message:
    for item in found:
        add(item)
    return {"truncated": outcome.truncated, "unreadable": outcome.unreadable}


QUICK = {"stat": _stat, "edit": _edit, "mkdir": _mkdir, "link": _link, "move": _move, "chmod": _chmod}
SLOW = {"list": _list, "glob": _glob, "grep": _grep, "replace": _replace, "remove": _remove}
"""An agent does these beside its other work, where they can be ended."""
