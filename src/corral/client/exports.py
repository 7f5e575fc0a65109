"""Packages whose names are loaded when they are first used.

    if TYPE_CHECKING:
        from corral.spec import Spec as Spec
    else:
        __getattr__, __dir__, __all__ = load_lazily(__name__, {".spec": "Spec"})

Type checkers read the first branch and Python the second, so a misspelled name is an error for both. A test compares
the two.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def load_lazily(
    package: str, names: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """The `__getattr__`, `__dir__` and `__all__` of a package.

    Args:
        package: Its `__name__`.
        names: Module → the names that it has, separated by spaces. A module that begins with a dot is the package's.
    """
    home_of = {name: module for module, found in names.items() for name in found.split()}
    exported = sorted(home_of)

    def get(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(home_of[name], package), name)
        setattr(sys.modules[package], name, value)
        return value

    return get, lambda: exported, exported
