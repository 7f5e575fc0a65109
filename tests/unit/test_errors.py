"""The error tree is what its docstring draws."""

import copy
import pickle
import re

from corral import errors
from corral.errors import FILE_ERRORS_BY_ERRNO, CorralError, SandboxFileError, all_error_classes
from corral.results import ExecResult, Usage

LINE = re.compile(r"^(?P<indent>[│├└─ ]*)(?P<name>\w+Error)(?: \((?P<builtin>\w+)\))?")
CLASSES = all_error_classes()


def drawn() -> dict[str, tuple[str | None, str | None]]:
    """name → (parent, builtin), from the drawing."""
    found: dict[str, tuple[str | None, str | None]] = {}
    stack: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        match = LINE.match(line)
        if match is None:
            continue
        depth = len(match["indent"])
        while stack and stack[-1][0] >= depth:
            stack.pop()
        found[match["name"]] = (stack[-1][1] if stack else None, match["builtin"])
        stack.append((depth, match["name"]))
    return found


def test_drawing_has_every_class_and_no_other() -> None:
    assert set(drawn()) == {cls.__name__ for cls in CLASSES}


def test_every_class_stands_where_it_is_drawn() -> None:
    names = {cls.__name__: [base.__name__ for base in cls.__bases__] for cls in CLASSES}
    expected = {name: [word for word in place if word] or ["Exception"] for name, place in drawn().items()}
    assert names == expected


def test_codes_are_unique_and_plain() -> None:
    codes = [cls.code for cls in CLASSES]
    assert len(set(codes)) == len(codes)
    assert all(re.fullmatch(r"[a-z_]+", code) for code in codes)
    assert all("code" in vars(cls) for cls in CLASSES), "a code is never inherited"


def test_every_error_tells_what_it_was_given() -> None:
    for cls in CLASSES:
        error = make(cls)
        assert (error.message, error.sandbox_id, error.op) == ("what", "box", "read"), cls
        assert str(error).startswith("what"), cls


def test_every_error_passes_between_processes() -> None:
    """Pools and clusters pickle errors."""
    for error in map(make, CLASSES):
        for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
            assert (type(again), str(again), again.sandbox_id) == (type(error), str(error), "box")


def test_hint_is_part_of_the_text() -> None:
    assert str(CorralError("what", hint="do this")) == "what (do this)"


def test_every_number_of_the_kernel_has_a_class_of_ours() -> None:
    assert all(issubclass(cls, SandboxFileError) for cls in FILE_ERRORS_BY_ERRNO.values())


def make(cls: type[CorralError]) -> CorralError:
    extra = {"result": ExecResult(1, "exited", Usage(0.0))} if issubclass(cls, errors.ExitError) else {}
    return cls("what", sandbox_id="box", op="read", **extra)
