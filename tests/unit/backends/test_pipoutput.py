"""What pip prints: as progress, and as an error that says what to do."""

import pytest

from corral.backends.embedded.pipoutput import Watched, explain
from corral.backends.embedded.registries import Registries, Source
from corral.errors import BackendUnavailableError, SpecError
from corral.results import Denial, ExecResult, OutputChunk, Usage

REGISTRIES = Registries(sources=(Source("pip", "https://pip.example.org/simple"), Source("npm", "https://npm.test/")))
RETRYING = "WARNING: Retrying (Retry(total=0, connect=None)) after connection broken by '{}': /simple/x/\n"
NOT_FOUND = "ERROR: No matching distribution found for x\n"


def fail(stderr: str, *denied: Denial) -> ExecResult:
    return ExecResult(1, "exited", Usage(0.0), stderr_bytes=stderr.encode(), denied=denied)


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        ("NewConnectionError('<x>: [Errno -3] Temporary failure in name resolution')", "its name can't be resolved"),
        ('ReadTimeoutError("HTTPConnectionPool(): Read timed out. (read timeout=3.0)")', "it does not answer"),
        ("ProtocolError('Connection aborted.', ConnectionResetError(104, 'reset'))", "no connection to it"),
        ("SSLError(SSLCertVerificationError(1, 'CERTIFICATE_VERIFY_FAILED'))", "SSL_CERT_FILE"),
        ("AnythingElse('of a later pip')", "AnythingElse"),
    ],
)
def test_index_that_can_not_be_reached_is_not_a_wrong_name(cause: str, said: str) -> None:
    error = explain(fail(RETRYING.format(cause) + NOT_FOUND), ("x",), REGISTRIES)
    assert isinstance(error, BackendUnavailableError)
    assert said in error.message
    assert error.hint.endswith("its indexes are https://pip.example.org/simple")


def test_earlier_silence_of_an_index_explains_that_nothing_was_found_and_no_failed_build() -> None:
    earlier = ["ReadTimeoutError('Read timed out.')"]
    assert "does not answer" in explain(fail(NOT_FOUND), ("x",), REGISTRIES, broken=earlier).message
    build = explain(fail("ERROR: Failed to build one or more wheels\n"), ("x",), REGISTRIES, broken=earlier)
    assert isinstance(build, SpecError)


def test_versions_that_there_are_are_named() -> None:
    found = "ERROR: Could not find a version that satisfies the requirement x>9 (from versions: {})\n"
    error = explain(fail(found.format("1.0, 1.1") + NOT_FOUND), ("x>9",), REGISTRIES)
    assert isinstance(error, SpecError)
    assert error.message.endswith("can't be installed: No matching distribution found for x (there are 1.0, 1.1)")
    many = explain(fail(found.format(", ".join(f"{n}.0" for n in range(999))) + NOT_FOUND), ("x>9",), REGISTRIES)
    assert len(many.message) < 300
    assert many.message.endswith(", 998.0)")
    none = explain(fail(found.format("none") + NOT_FOUND), ("x",), REGISTRIES)
    assert none.message.endswith("found for x")


def test_host_that_is_refused_is_permitted_by_what_the_hint_says() -> None:
    error = explain(fail(NOT_FOUND, Denial("files.example.org", 443, "policy")), ("x",), REGISTRIES)
    assert "files.example.org:443 can't be reached" in error.message
    assert error.hint.endswith("network='packages,files.example.org:443'")


def test_index_without_tls_is_named() -> None:
    text = "WARNING: The repository located at pip.example.org is not a trusted or secure host and is being ignored.\n"
    error = explain(fail(text + NOT_FOUND), ("x",), REGISTRIES)
    assert error.hint.endswith("pip config set global.trusted-host pip.example.org")


def test_text_from_inside_is_bounded_and_harmless() -> None:
    error = explain(fail("ERROR: \x1b[2J" + "x" * 100_000 + "\n"), ("x",), REGISTRIES)
    assert error.message.isprintable()
    assert len(error.message) < 700


def test_progress_is_lines_that_pip_is_known_to_print() -> None:
    told: list[str] = []
    watched = Watched(told.append)
    text = b"Collecting numpy\n  Downloading numpy-2.whl (18 MB)\nnoise\n\x1b]0;x\x07\nCollecting \x1b[2Ja\n"
    for piece in (text[:13], text[13:], b"y" * 10_000, b"\n", RETRYING.format("x").encode()):
        watched.take(OutputChunk("stdout", piece))
    assert told == [
        "Collecting numpy", "Downloading numpy-2.whl (18 MB)", "Collecting [2Ja",
        "an index does not answer; pip tries again",
    ]  # fmt: skip
