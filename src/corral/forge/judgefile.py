"""A judge by name: one that ships, or one from a Python file."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from corral.errors import RunFolderError, SpecError, did_you_mean
from corral.forge.judge.judge import Judge, default_judge
from corral.forge.judge.rubric import recorded_rubric

SHIPPED: Mapping[str, Callable[[], Judge]] = {"default": default_judge, "rubric": recorded_rubric}


def find_judge(name: str) -> Judge:
    """`default`, `rubric`, or `FILE.py:NAME`: a `Judge`, or a function that returns one.

    The file runs in this process, with your rights.

    Raises:
        SpecError: no such judge.
    """
    if name in SHIPPED:
        return SHIPPED[name]()
    path, colon, attribute = name.rpartition(":")
    if not colon or not path.endswith(".py"):
        hint = did_you_mean(name, SHIPPED, otherwise=f"give {', '.join(SHIPPED)} or FILE.py:NAME")
        raise SpecError(f"no judge named {name!r}", hint=hint)
    file = Path(path)
    value = getattr(_load(file), attribute, None)
    if callable(value) and not isinstance(value, Judge):
        value = value()
    if not isinstance(value, Judge):
        raise SpecError(f"{attribute!r} in {file.name} is not a judge", hint="define a corral.forge.Judge of that name")
    return value


def recognise_judge(description: Mapping[str, Any]) -> Judge:
    """The shipped judge that a run's folder describes. Raises: RunFolderError for any other."""
    for make in SHIPPED.values():
        judge = make()
        if json.loads(json.dumps(judge.describe())) == description:  # as it is read: no tuples
            return judge
    raise RunFolderError(
        "the run used a custom judge", hint="give it again: --judge FILE.py:NAME, or the contest.toml itself"
    )


def _load(file: Path) -> Any:
    if not file.is_file():
        raise SpecError(f"no such file: {str(file)!r}", hint="a judge is given as FILE.py:NAME")
    # Each file gets its own module name: two may be called judge.py.
    name = f"corral_judge_{hashlib.sha256(str(file.resolve()).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise SpecError(f"{file.name} can't be run: {type(error).__name__}: {error}", hint="fix the judge") from error
    return module
