"""Each error of Corral's has a place on the wire, and no refusal is a 500."""

from corral.errors import CorralError, EngineFaultError, ExitError, SandboxFileNotFoundError, all_error_classes
from corral.server.translate import TABLE, translate

BUGS = {CorralError, EngineFaultError}


def test_every_error_has_a_place() -> None:
    for kind in (kind for kind in all_error_classes() if kind.__module__ == "corral.errors"):
        error = kind.__new__(kind)
        CorralError.__init__(error, "what happened", hint="what to do")
        fault = translate(error)
        if kind in BUGS:
            assert fault is None, kind
        else:
            assert fault is not None, kind
            assert fault.status != 500, kind
            assert "what happened" in fault.message, kind
            assert "what to do" in fault.message, kind


def test_a_class_stands_before_its_parents() -> None:
    kinds = [kind for kind, *_ in TABLE]
    for index, kind in enumerate(kinds):
        assert not any(issubclass(kind, earlier) for earlier in kinds[:index]), kind


def test_codes_are_the_daemons() -> None:
    fault = translate(SandboxFileNotFoundError("no such file", path="a"))
    assert fault is not None
    assert (fault.status, fault.code, fault.source) == (404, "FILE_NOT_FOUND", "DAYTONA_DAEMON")
    assert issubclass(ExitError, CorralError)
