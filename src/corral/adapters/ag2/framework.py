"""Finds AG2: the package `ag2` from 1.0 on, and `autogen.beta` in ag2 0.13 and 0.14."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

_ROOTS = ("ag2", "autogen.beta")
_EXPORTED = {
    "CodeEnvironment": "tools.code.environment.base",
    "CodeLanguage": "tools.code.environment.base",
    "CodeRunResult": "tools.code.environment.base",
    "ExecResult": "tools.sandbox",
    "LanguageRunner": "tools.sandbox",
    "Variable": "annotations",
}
"""AG2's own classes that `corral.adapters.ag2` exports."""


def __getattr__(name: str) -> Any:
    if name not in _EXPORTED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return get(_EXPORTED[name], name)


@cache
def root() -> str:
    """The name of the installed package. Raises: ImportError, which says what to do."""
    for name in _ROOTS:
        try:
            importlib.import_module(f"{name}.tools.sandbox")
        except ImportError:
            continue
        return name
    raise ImportError(
        "AG2 is not installed, or is too old: pip install 'corral[ag2]', with 'ag2<1' for the classes of autogen "
        "(corral.tools works without it)"
    )


def get(module: str, name: str) -> Any:
    """An object of AG2, such as `get("tools.sandbox", "ExecResult")`. Raises: ImportError."""
    return getattr(importlib.import_module(f"{root()}.{module}"), name)


def is_variable(value: object) -> bool:
    """True for AG2's `Variable`."""
    return isinstance(value, get("annotations", "Variable"))
