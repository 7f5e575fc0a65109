"""Arguments from a model: accepted where they are clear, otherwise refused with a text that helps to fix them."""

from typing import Any

import pytest

from corral.tools.schema import ArgumentsError, Parameter, make_schema, parse_arguments

PARAMETERS = (
    Parameter("code", "string", "the source", required=True),
    Parameter("lines", "integer", "how many", default=10, least=1, most=100),
    Parameter("seconds", "number", "how long"),
    Parameter("all", "boolean", "whether all", default=False),
    Parameter("mode", "string", "which", default="a", choices=("a", "b")),
)


def test_schema_is_json_schema() -> None:
    assert make_schema(PARAMETERS) == {
        "type": "object",
        "properties": {
            "code": {"type": "string", "description": "the source"},
            "lines": {"type": "integer", "description": "how many", "minimum": 1, "maximum": 100, "default": 10},
            "seconds": {"type": "number", "description": "how long"},
            "all": {"type": "boolean", "description": "whether all", "default": False},
            "mode": {"type": "string", "description": "which", "enum": ["a", "b"], "default": "a"},
        },
        "required": ["code"],
        "additionalProperties": False,
    }


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"code": "x"}, {}),
        ('{"code": "x"}', {}),
        ({"code": "x", "lines": "7"}, {"lines": 7}),
        ({"code": "x", "lines": 7.0}, {"lines": 7}),
        ({"code": "x", "seconds": "0.5"}, {"seconds": 0.5}),
        ({"code": "x", "seconds": 2}, {"seconds": 2}),
        ({"code": "x", "all": "True"}, {"all": True}),
        ({"code": "x", "lines": None}, {}),
    ],
)
def test_what_is_clear_is_taken(given: Any, expected: dict[str, Any]) -> None:
    defaults = {"code": "x", "lines": 10, "seconds": None, "all": False, "mode": "a"}
    assert parse_arguments(PARAMETERS, given) == {**defaults, **expected}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "'code' is missing: the source"),
        (None, "'code' is missing"),
        ("", "'code' is missing"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[1]", "must be an object, not an array"),
        ({"code": 1}, "'code' must be a string, not an integer"),
        ({"code": "x", "lines": True}, "'lines' must be an integer, not a boolean"),
        ({"code": "x", "lines": "many"}, "'lines' must be an integer, not a string"),
        ({"code": "x", "lines": 0}, "'lines' must be at least 1"),
        ({"code": "x", "lines": 101}, "'lines' must be at most 100"),
        ({"code": "x", "lines": 1.5}, "'lines' must be an integer, not a number"),
        ({"code": "x", "all": "perhaps"}, "'all' must be a boolean"),
        ({"codes": "x"}, "unknown parameter 'codes', did you mean 'code'?"),
        ({"code": "x", "zzz": 1}, "unknown parameter 'zzz', the parameters are code, lines"),
        ({"code": "\ud800"}, "half a character"),
    ],
)
def test_what_is_wrong_is_told(given: Any, told: str) -> None:
    with pytest.raises(ArgumentsError) as caught:
        parse_arguments(PARAMETERS, given)
    assert told in str(caught.value)


def test_everything_wrong_is_told_at_once() -> None:
    with pytest.raises(ArgumentsError) as caught:
        parse_arguments(PARAMETERS, {"lines": 0, "other": 1})
    assert str(caught.value).count(";") == 2
