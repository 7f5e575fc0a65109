"""Contexts: the variables that are looked up in one each time an environment is opened, and its conversation."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from corral.errors import SpecError, VariableError
from corral.secret import Pending, Secret


class Missing(enum.Enum):
    """The type of `MISSING`: None may be a value."""

    MISSING = "missing"


MISSING = Missing.MISSING


@dataclass(frozen=True, slots=True)
class Variable(Pending):
    """A value from the context: `Environment(env={"TOKEN": Variable("token")})`.

    Without a `name` it has the name of the parameter, or of the entry of a mapping, that holds it. Its value comes from
    the context, None included; else from `default`, else from `default_factory`.
    """

    name: str | None = None
    default: Any = field(default=MISSING, kw_only=True, repr=False)  # it may be a secret
    default_factory: Callable[[], Any] | None = field(default=None, kw_only=True, repr=False)

    def __post_init__(self) -> None:
        if self.name is not None and (not isinstance(self.name, str) or not self.name):
            raise SpecError(f"{self.name!r} is not a valid variable name", hint="give a text, or None")
        if self.default is not MISSING and self.default_factory is not None:
            raise SpecError(f"the variable {self.name!r} has both default and default_factory", hint="pass one of them")


def variables_of(context: Any) -> Mapping[str, Any]:
    """The variables of a context: its `.variables`, or the context itself if it is a mapping.

    Raises:
        SpecError: it has neither.
    """
    if context is None:
        return {}
    found = getattr(context, "variables", None)
    if isinstance(found, Mapping):
        return found
    if isinstance(context, Mapping):
        return context
    raise SpecError(
        f"a {type(context).__name__} is not a context", hint="give a mapping, or an object with a mapping .variables"
    )


class Resolver:
    """Replaces variables by their values, and records missing ones, so that one error can name them all."""

    def __init__(self, context: Any) -> None:
        self._without_context = context is None
        self._variables = variables_of(context)
        self._missing: list[str] = []
        self._failures: list[Exception] = []

    def resolve(self, value: Any, *, name: str | None) -> Any:
        """The value with all variables replaced, at any depth of mappings and sequences. Missing ones become None."""
        if isinstance(value, Variable):
            return self._look_up(value, name)
        if isinstance(value, Mapping) and has_variable(value):
            return {key: self.resolve(item, name=str(key)) for key, item in value.items()}
        if isinstance(value, list | tuple) and has_variable(value):
            return type(value)(self.resolve(item, name=None) for item in value)
        if isinstance(value, Secret) and has_variable(value):
            missing = len(self._missing)
            found = self.resolve(value.value, name=value.name)
            return value if len(self._missing) > missing else replace(value, value=found)
        return value

    def _look_up(self, variable: Variable, name: str | None) -> Any:
        key = variable.name or name
        if key is not None and key in self._variables:
            return self._variables[key]
        if variable.default is not MISSING:
            return self.resolve(variable.default, name=name)
        if variable.default_factory is not None:
            try:
                return self.resolve(variable.default_factory(), name=name)
            except Exception as error:  # noqa: BLE001 - the caller's function may raise anything; `check` reports it
                self._failures.append(error)
        self._missing.append(key if key is not None else "(a variable without a name in a list)")
        return None

    def check(self) -> None:
        """Raise one error for all variables without a value.

        Raises:
            VariableError: `names` are all of them.
        """
        if not self._missing:
            return
        names = tuple(dict.fromkeys(self._missing))
        listed = ", ".join(repr(name) for name in names)
        text = f"no value for the variable{'s' if len(names) > 1 else ''} {listed}"
        if self._failures:
            kinds = ", ".join(sorted({type(error).__name__ for error in self._failures}))
            text += f"; a default_factory failed with {kinds}"
        hint = "open the environment with a context" if self._without_context else "put them into context.variables"
        error = VariableError(text, names=names, op="open", hint=f"{hint}, or set a default")
        raise error from (self._failures[0] if self._failures else None)


def has_variable(value: Any) -> bool:
    """True if it contains a variable."""
    if isinstance(value, Variable):
        return True
    if isinstance(value, Secret):
        return isinstance(value.value, Variable)
    if isinstance(value, Mapping):
        return any(has_variable(item) for item in value.values())
    return isinstance(value, list | tuple) and any(has_variable(item) for item in value)


# Which conversation a context belongs to.

Conversation = Callable[[Any], str | int | None]
"""A function from a context to the id of its conversation."""

CONVERSATION_NAME = "conversation_id"


def conversation_of(context: Any, *, key: str | None, ask: bool | Conversation) -> str | int | None:
    """The id of a context's conversation; None if the caller passes its own `key`.

    It comes from `ask`, the variable `conversation_id`, the context's attribute of that name, or the id of its
    stream (AG2's conversations have one each).

    Raises:
        SpecError: the context has no id. Sharing a sandbox between conversations by mistake would be worse.
    """
    found = ask(context) if callable(ask) else _find_conversation(context)
    if found == "":
        found = None  # not an id: contexts without one would share a sandbox
    if found is None and not key:
        raise SpecError(
            "the environment has one sandbox per conversation, and the context has no conversation id",
            hint=f"open it with key=, or put {CONVERSATION_NAME!r} into the context's variables",
        )
    return found


def _find_conversation(context: Any) -> str | int | None:
    found = getattr(context, CONVERSATION_NAME, None)
    if found is None:
        found = variables_of(context).get(CONVERSATION_NAME)
    if found is None:
        found = getattr(getattr(context, "stream", None), "id", None)
    return found if found is None or isinstance(found, str | int) else str(found)
