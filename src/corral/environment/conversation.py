"""Which conversation a context belongs to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from corral.environment.variable import variables_of
from corral.errors import SpecError

Conversation = Callable[[Any], str | int | None]
"""A function from a context to the id of its conversation."""

NAME = "conversation_id"


def conversation_of(context: Any, *, key: str | None, ask: bool | Conversation) -> str | int | None:
    """The id of a context's conversation; None if the caller passes its own `key`.

    It comes from `ask`, the variable `conversation_id`, the context's attribute of that name, or the id of its
    stream (AG2's conversations have one each).

    Raises:
        SpecError: the context has no id. Sharing a sandbox between conversations by mistake would be worse.
    """
    if callable(ask):
        found = ask(context)
    else:
        found = _look(context)
    if found == "":
        found = None  # not an id: contexts without one would share a sandbox
    if found is None and not key:
        raise SpecError(
            "the environment has one sandbox per conversation, and the context has no conversation id",
            hint=f"open it with key=, or put {NAME!r} into the context's variables",
        )
    return found


def _look(context: Any) -> str | int | None:
    if context is None:
        return None
    own = getattr(context, NAME, None)
    variables: Mapping[str, Any] = {} if own is not None else variables_of(context)
    found = own if own is not None else variables.get(NAME)
    if found is None:
        found = getattr(getattr(context, "stream", None), "id", None)
    if found is None or isinstance(found, str | int):
        return found
    return str(found)
