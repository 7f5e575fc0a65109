"""Requests for operations on files, as every file agent understands them: a message in, and an answer out.

A message is a JSON object `{"op": name, "path": …, …}`; long parts (texts, lists of paths) come beside it as payloads
of bytes, in the order that the operation documents. Operations that hand over open files or streams (read, write, pack,
unpack, watch) are written for each agent, since the wires differ in what they can carry.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Dict

from corral.inside.files import edit, look, make_folder, move, remove
from corral.inside.search import Outcome, glob, grep, list_folder, replace

Message = Dict[str, Any]


def answer(message: Message, payloads: Sequence[bytes], add: Callable[[Message], None]) -> Message:
    """Carry out a request and return the last part of the answer; `add` is called with each of many results.

    Raises: KeyError for an unknown operation; else what `refusal.describe_refusal` describes.
    """
    operation = message["op"]
    if operation not in _SEARCHES:
        return _ACTS[operation](message, payloads) or {}
    outcome = Outcome()
    for item in _SEARCHES[operation](message, payloads, outcome):
        add(item)
    return {"truncated": outcome.truncated, "unreadable": outcome.unreadable}


def pick(message: Message, *names: str) -> Message:
    """The options among these that the message has."""
    return {name: message[name] for name in names if name in message}


def write_options(message: Message) -> Message:
    """How a file is to be written, for `files.replacing`."""
    return pick(message, "mode", "parents", "exclusive", "append", "links")


def _edit(message: Message, payloads: Sequence[bytes]) -> Message:
    """Payloads: the old text, the new one."""
    old, new = payloads
    return edit(message["path"], old, new, **pick(message, "replace_all", "expected_sha256", "links", "wait"))


def _grep(message: Message, payloads: Sequence[bytes], outcome: Outcome) -> Iterator[Message]:
    """Payload, if any: the paths to leave out, with NULs between them."""
    options = pick(message, "limit", "include", "ignore_case", "fixed", "hidden", "links")
    without = frozenset(payloads[0].decode("utf-8", "surrogateescape").split("\0")) if payloads else frozenset()
    return grep(message["path"], message["pattern"], outcome=outcome, without=without, **options)


def _replace(message: Message, payloads: Sequence[bytes], outcome: Outcome) -> Iterator[Message]:
    """Payload: the new text."""
    options = pick(message, "include", "ignore_case", "fixed", "hidden")
    return replace(message["path"], message["pattern"], payloads[0], outcome=outcome, **options)


_ACTS: dict[str, Callable[[Message, Sequence[bytes]], Message | None]] = {
    "stat": lambda message, _: {"stat": look(message["path"], **pick(message, "follow", "links"))},
    "edit": _edit,
    "mkdir": lambda message, _: make_folder(message["path"], **pick(message, "parents", "mode")),
    "link": lambda message, _: os.symlink(message["target"], message["path"]),
    "move": lambda message, _: move(message["source"], message["target"], **pick(message, "overwrite")),
    "chmod": lambda message, _: os.chmod(message["path"], message["mode"]),
    "remove": lambda message, _: remove(message["path"], **pick(message, "recursive")),
}
_SEARCHES: dict[str, Callable[[Message, Sequence[bytes], Outcome], Iterator[Message]]] = {
    "list": lambda message, _, __: list_folder(message["path"], **pick(message, "depth", "links")),
    "glob": lambda message, _, outcome: glob(
        message["path"], message["pattern"], outcome=outcome, **pick(message, "limit", "hidden", "linked", "links")
    ),
    "grep": _grep,
    "replace": _replace,
}
SLOW = frozenset((*_SEARCHES, "remove"))
"""These may take long: an agent runs them in a process that can be killed."""
QUICK = frozenset(_ACTS) - SLOW
