"""Variables: where their values come from, and one error for all without a value."""

from types import SimpleNamespace
from typing import Any

import pytest

from corral import Environment, Resources, SpecError, Variable, VariableError
from corral.backends.memory import MemoryBackend
from corral.environment.variable import variables_of


def make(**options: Any) -> Environment:
    return Environment(backend=MemoryBackend(), **options)


@pytest.mark.parametrize(
    ("variable", "context", "expected"),
    [
        (Variable(), {"workdir": "/a"}, "/a"),
        (Variable("folder"), {"folder": "/b", "workdir": "/no"}, "/b"),
        (Variable(default="/c"), {}, "/c"),
        (Variable(default="/c"), None, "/c"),
        (Variable(default="/c"), {"workdir": "/d"}, "/d"),
        (Variable(default_factory=lambda: "/e"), {}, "/e"),
        (Variable(default="/c"), SimpleNamespace(variables={"workdir": "/f"}), "/f"),
    ],
)
def test_value_comes_from_the_context_then_the_default(variable: Variable, context: Any, expected: str) -> None:
    assert make(workdir=variable).resolve(context).workdir == expected


def test_none_in_the_context_is_a_value() -> None:
    assert make(image=Variable(default="python")).resolve({"image": None}).image is None


def test_variables_stand_in_mappings_and_lists() -> None:
    env = make(
        env={"TOKEN": Variable(), "FIXED": "1", "OTHER": Variable("named")},
        labels={"owner": Variable(default="nobody")},
        packages=["numpy", Variable("package")],
    )
    spec = env.resolve({"TOKEN": "t", "named": "n", "package": "polars"})
    assert spec.env == {"TOKEN": "t", "FIXED": "1", "OTHER": "n"}
    assert spec.labels == {"owner": "nobody"}
    assert spec.packages == ("numpy", "polars")


def test_a_mapping_that_a_variable_gives_may_hold_variables() -> None:
    env = make(env=Variable(default={"A": Variable("a")}))
    assert env.resolve({"a": "1"}).env == {"A": "1"}


def test_one_error_names_all_that_are_missing() -> None:
    env = make(image=Variable(), workdir=Variable("folder"), env={"KEY": Variable()}, resources=Variable(default=None))
    with pytest.raises(VariableError) as caught:
        env.resolve({"other": 1})
    assert caught.value.names == ("image", "folder", "KEY")
    assert "'image', 'folder', 'KEY'" in str(caught.value)
    assert isinstance(caught.value, LookupError)


async def test_opening_without_a_context_says_so() -> None:
    env = make(image=Variable())
    with pytest.raises(VariableError, match="with a context"):
        async with env.open():
            pytest.fail("nothing may be made")


def test_a_factory_that_fails_is_told_with_its_cause() -> None:
    def fail() -> str:
        raise OSError("no vault")

    with pytest.raises(VariableError, match="default_factory failed with OSError") as caught:
        make(workdir=Variable(default_factory=fail)).resolve({})
    assert isinstance(caught.value.__cause__, OSError)


def test_values_are_checked_after_they_are_known() -> None:
    with pytest.raises(SpecError, match="workdir"):
        make(workdir=Variable()).resolve({"workdir": "relative"})
    assert make(resources=Variable()).resolve({"resources": Resources(cpus=1)}).resources.cpus == 1


@pytest.mark.parametrize("options", [{"imagee": "x"}, {"imagee": Variable()}, {"workdir": "relative"}])
def test_what_is_wrong_whatever_the_context_is_told_at_once(options: dict[str, Any]) -> None:
    with pytest.raises(SpecError):
        make(**options)


def test_two_defaults_are_refused() -> None:
    with pytest.raises(SpecError):
        Variable("x", default=1, default_factory=lambda: 2)


def test_repr_of_a_variable_has_no_default() -> None:
    assert "hunter2" not in repr(Variable("password", default="hunter2"))


def test_what_is_no_context_is_refused() -> None:
    with pytest.raises(SpecError, match="int is not a context"):
        variables_of(3)


def test_factory_may_give_a_variable_and_is_checked_like_any_value() -> None:
    env = Environment(backend=MemoryBackend(), workdir=Variable(default_factory=lambda: Variable("folder")))
    assert env.resolve({"folder": "/a"}).workdir == "/a"
    with pytest.raises(VariableError) as caught:
        env.resolve({})
    assert caught.value.names == ("folder",)
    with pytest.raises(SpecError, match="workdir"):
        Environment(backend=MemoryBackend(), workdir=Variable(default_factory=dict)).resolve()
