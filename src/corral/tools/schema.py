"""Parameters of a tool: as a JSON schema for the model, and as checks of the model's arguments."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from corral.errors import did_you_mean

Kind = Literal["string", "integer", "number", "boolean"]

_PYTHON: dict[Kind, type | tuple[type, ...]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
}
_WORDS = {"true": True, "false": False}
_SURROGATE = re.compile("[\ud800-\udfff]")


class ArgumentsError(ValueError):
    """A model's arguments are invalid; the text says what is expected. It never leaves a tool."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter. An optional one has a default, which may be None."""

    name: str
    kind: Kind
    description: str
    required: bool = False
    default: str | int | float | bool | None = None
    choices: tuple[str, ...] = ()
    least: float | None = None
    most: float | None = None


def make_schema(parameters: Sequence[Parameter]) -> dict[str, Any]:
    """The JSON schema of an object with these parameters."""
    return {
        "type": "object",
        "properties": {parameter.name: _describe(parameter) for parameter in parameters},
        "required": [parameter.name for parameter in parameters if parameter.required],
        "additionalProperties": False,
    }


def _describe(parameter: Parameter) -> dict[str, Any]:
    described: dict[str, Any] = {"type": parameter.kind, "description": parameter.description}
    if parameter.choices:
        described["enum"] = list(parameter.choices)
    if parameter.least is not None:
        described["minimum"] = parameter.least
    if parameter.most is not None:
        described["maximum"] = parameter.most
    if not parameter.required and parameter.default is not None:
        described["default"] = parameter.default
    return described


def parse_arguments(parameters: Sequence[Parameter], arguments: Mapping[str, Any] | str | None) -> dict[str, Any]:
    """Values for all parameters. `choices` are not checked here: their tool accepts other names too.

    Raises:
        ArgumentsError: names every fault, so that the model can correct all of them at once.
    """
    given = _as_mapping(arguments)
    known = {parameter.name: parameter for parameter in parameters}
    faults = [_refuse_unknown(name, known) for name in given if name not in known]
    values: dict[str, Any] = {}
    for name, parameter in known.items():
        if given.get(name) is None:
            if parameter.required:
                faults.append(f"{name!r} is missing: {parameter.description}")
            values[name] = parameter.default
            continue
        value, fault = _check(parameter, given[name])
        values[name] = value
        if fault:
            faults.append(fault)
    if faults:
        raise ArgumentsError("; ".join(faults))
    return values


def _as_mapping(arguments: Mapping[str, Any] | str | None) -> Mapping[str, Any]:
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments) if arguments.strip() else {}
        except (ValueError, RecursionError) as error:
            raise ArgumentsError(f"the arguments are not JSON: {error}") from error
    if arguments is None:
        return {}
    if not isinstance(arguments, Mapping):
        raise ArgumentsError(f"the arguments must be an object, not {_name_kind(arguments)}")
    return arguments


def _refuse_unknown(name: object, known: Mapping[str, Parameter]) -> str:
    hint = did_you_mean(str(name), known, otherwise=f"the parameters are {', '.join(known)}")
    return f"unknown parameter {str(name)[:80]!r}, {hint}"


def _check(parameter: Parameter, value: Any) -> tuple[Any, str | None]:
    value = _convert(parameter.kind, value)
    fits = isinstance(value, _PYTHON[parameter.kind]) and (parameter.kind == "boolean" or not isinstance(value, bool))
    if not fits:
        article = "an" if parameter.kind == "integer" else "a"
        return value, f"{parameter.name!r} must be {article} {parameter.kind}, not {_name_kind(value)}"
    if isinstance(value, str) and _SURROGATE.search(value):
        return value, f"{parameter.name!r} contains half a character (a lone surrogate)"
    if parameter.kind in ("integer", "number"):
        if parameter.least is not None and not value >= parameter.least:
            return value, f"{parameter.name!r} must be at least {parameter.least:g}"
        if parameter.most is not None and not value <= parameter.most:
            return value, f"{parameter.name!r} must be at most {parameter.most:g}"
    return value, None


def _convert(kind: Kind, value: Any) -> Any:
    """The value, converted if a model wrote a number or a boolean as a text, or a whole number with a point."""
    if kind == "boolean" and isinstance(value, str):
        return _WORDS.get(value.strip().lower(), value)
    if kind in ("integer", "number") and isinstance(value, str) and len(value) < 40:
        try:
            value = float(value) if kind == "number" else int(value)
        except ValueError:
            return value
    if kind == "integer" and isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _name_kind(value: object) -> str:
    names: dict[type, str] = {
        str: "a string", bool: "a boolean", int: "an integer", float: "a number", list: "an array", dict: "an object",
        type(None): "null",
    }  # fmt: skip
    return names.get(type(value), f"a {type(value).__name__}")
