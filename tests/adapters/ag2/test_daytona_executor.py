"""`DaytonaCodeExecutor` as its users make it, against a Daytona service, which here is `corral serve`."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from daytona import Image

from adapters.ag2.conftest import Living
from corral import SandboxClosedError
from corral.adapters.ag2 import (
    CodeBlock,
    DaytonaCodeExecutor,
    DaytonaCodeResult,
    DaytonaSandboxResources,
    SandboxCodeExecutor,
)
from support.serving import ServedProcess

pytestmark = pytest.mark.needs_userns


@pytest.fixture(scope="module")
def executor(server: ServedProcess) -> Iterator[DaytonaCodeExecutor]:
    with DaytonaCodeExecutor(server.key, server.url, timeout=30, env_vars={"FOO": "b är"}) as made:
        yield made


def run(executor: Any, *blocks: tuple[str, str]) -> Any:
    return executor.execute_code_blocks([CodeBlock(code=code, language=language) for language, code in blocks])


KNOWN = "Supported languages: python, bash, sh, javascript, typescript"

ROWS: list[tuple[list[tuple[str, str]], int, str]] = [
    ([], 0, ""),
    ([("python", "print(1)"), ("sh", "echo 2")], 0, "1\n\n2\n"),
    ([("sh", "printf 1"), ("sh", "printf 2")], 0, "1\n2"),
    ([(" PY ", "import os; print(os.environ['FOO'], os.getcwd())")], 0, "b är /home/daytona\n"),
    ([("shell", "echo $FOO; pwd; echo err >&2")], 0, "b är\n/home/daytona\nerr\n"),
    ([("bash", "echo one"), ("bash", "echo two; exit 3"), ("bash", "touch three")], 3, "two\n"),
    ([("sh", "ls")], 0, ""),
    ([("sh", "touch ran"), ("COBOL ", "x")], 1, f"Unsupported language: 'COBOL '. {KNOWN}"),
    ([("sh", "ls; rm ran")], 0, "ran\n"),
    ([("", "x")], 1, f"Unsupported language: ''. {KNOWN}"),
    ([("python3", "x")], 1, f"Unsupported language: 'python3'. {KNOWN}"),
    ([("node", "x")], 1, f"Unsupported language: 'node'. {KNOWN}"),
    ([("python", "import sys; print('out'); sys.exit(7)")], 7, "out\n"),
    ([("python", "import os; os.kill(os.getpid(), 9)")], 137, ""),
    ([("bash", "")], 0, ""),
    ([("sh", "cat")], 0, ""),
]


@pytest.mark.parametrize("row", range(len(ROWS)))
def test_results(executor: DaytonaCodeExecutor, row: int) -> None:
    blocks, exit_code, output = ROWS[row]
    result = run(executor, *blocks)
    assert isinstance(result, DaytonaCodeResult)
    assert (result.exit_code, result.output) == (exit_code, output)
    assert result.sandbox_id == executor.sandbox_id


def test_constants() -> None:
    assert DaytonaCodeExecutor.SUPPORTED_LANGUAGES == ["python", "bash", "sh", "javascript", "typescript"]
    aliases = DaytonaCodeExecutor._LANG_ALIASES
    assert aliases == {"py": "python", "js": "javascript", "ts": "typescript", "shell": "bash"}


@pytest.mark.needs_node
def test_javascript(executor: DaytonaCodeExecutor) -> None:
    assert run(executor, ("js", "console.log(6 * 7)")).output == "42\n"


def test_properties(executor: DaytonaCodeExecutor) -> None:
    assert executor.timeout == 30
    assert executor.code_extractor is not executor.code_extractor
    (block,) = executor.code_extractor.extract_code_blocks("```sh\nls\n```")
    assert (block.language, block.code) == ("sh", "ls")


# The constructor's checks, in their order.

BOTH = (
    "Cannot specify both 'snapshot' and 'image'. Use 'snapshot' for a named Daytona snapshot, or 'image' for a custom "
    "Docker image."
)


def test_checks_come_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the whole text is compared
        DaytonaCodeExecutor(timeout=0, snapshot="a", image="b")
    assert str(caught.value) == "Timeout must be greater than or equal to 1."
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the whole text is compared
        DaytonaCodeExecutor(snapshot="a", image="b")
    assert str(caught.value) == BOTH
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError) as missing:
        DaytonaCodeExecutor(timeout=0)
    text = "Missing dependencies for DaytonaCodeExecutor. Please install with: pip install 'corral[ag2,daytona]'"
    assert str(missing.value) == text


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"snapshot": "nowhere"}, "snapshot 'nowhere' not found"),
        ({"image": "python:3.12-slim"}, "no snapshot 'python:3.12-slim', and this server does not pull"),
        ({"image": Image.debian_slim("3.12").pip_install("requests")}, "building images"),
        ({"image": "x", "resources": DaytonaSandboxResources(cpu=1)}, "no snapshot 'x'"),
        ({"api_key": "wrong"}, "invalid API key"),
        ({"name": "no/name"}, "name: must not contain slashes"),
        ({"env_vars": {"A": 3}}, "the value of environment variable 'A' is not a string"),
    ],
    ids=["snapshot", "image", "recipe", "resources", "key", "name", "env"],
)
def test_creation_that_fails(service: ServedProcess, living: Living, options: dict[str, Any], text: str) -> None:
    before = living()
    with pytest.raises(RuntimeError) as caught:
        DaytonaCodeExecutor(**options)
    assert str(caught.value).startswith("Failed to create Daytona sandbox: ")
    assert text in str(caught.value)
    assert living() == before


@contextmanager
def refusing(status: int) -> Iterator[str]:
    """A service that answers everything alike; gives its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            body = json.dumps({"statusCode": status, "message": "not now", "error": "x"}).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Retry-After", "3600")
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST  # noqa: N815 - the name that http.server looks for

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/api"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize(
    ("status", "prefix"),
    [
        (429, "Daytona rate limit exceeded during sandbox creation: "),
        (408, "Daytona sandbox creation timed out: "),
        (500, "Failed to create Daytona sandbox: "),
    ],
)
def test_creation_that_is_refused(status: int, prefix: str) -> None:
    with refusing(status) as url, pytest.raises(RuntimeError) as caught:
        DaytonaCodeExecutor("key", url)
    assert str(caught.value).startswith(prefix)
    assert "not now" in str(caught.value)


# Its life.


def test_it_is_made_at_once_and_restarted_under_the_same_name(service: ServedProcess, living: Living) -> None:
    executor = DaytonaCodeExecutor(name="A name of theirs")
    try:
        assert "A name of theirs" in living()
        first = executor.sandbox_id
        run(executor, ("sh", "echo x > kept"))
        executor.restart()
        assert living().count("A name of theirs") == 1
        assert executor.sandbox_id != first
        assert run(executor, ("sh", "ls")).output == ""
    finally:
        executor.delete()
    executor.delete()
    assert "A name of theirs" not in living()
    with pytest.raises(SandboxClosedError, match="restart"):
        executor.execute_code_blocks([])


def test_as_a_context_manager(service: ServedProcess, living: Living) -> None:
    with pytest.raises(KeyError), DaytonaCodeExecutor(name="entered") as executor:  # noqa: PT012 - what is left behind
        assert executor.__enter__() is executor
        raise KeyError
    assert "entered" not in living()


def test_the_general_executor_on_every_backend(options: dict[str, Any]) -> None:
    with SandboxCodeExecutor(timeout=30, **options) as executor:
        result = run(executor, ("python3", "print(1)"), ("sh", "echo 2; exit 3"), ("sh", "touch three"))
        assert (result.exit_code, result.output) == (3, "1\n\n2\n")
        assert [(block.language, block.exit_code) for block in result.blocks] == [("python", 0), ("sh", 3)]
        assert run(executor, ("sh", "ls")).output == ""
        assert run(executor, ("python", "x = '" + "a" * 5_000_000 + "'\nprint(len(x))")).output == "5000000\n"
        first = executor.sandbox_id
        executor.restart()
        assert executor.sandbox_id != first
