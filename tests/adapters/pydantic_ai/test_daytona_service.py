"""DaytonaSandbox as its users make it: by key and URL, against a Daytona service, which here is `corral serve`."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from corral.adapters.pydantic_ai import DaytonaSandbox
from corral.adapters.pydantic_ai.opening import make_name
from corral.backends.daytona import DaytonaBackend
from corral.concurrency.portal import get_portal
from support.serving import ServedProcess

pytestmark = [pytest.mark.needs_userns]


@contextlib.contextmanager
def closing_backend(server: ServedProcess) -> Iterator[Callable[[str], float | None]]:
    """How long a kept sandbox lives yet, by its name."""
    backend = DaytonaBackend(api_key=server.key, api_url=server.url)

    def deadline_of(name: str) -> float | None:
        (found,) = [info for info in get_portal().run(backend.list()) if info.name == name]
        return found.deadline

    try:
        yield deadline_of
    finally:
        get_portal().run(backend.aclose())


@pytest.fixture
def sandbox(server: ServedProcess) -> Iterator[DaytonaSandbox]:
    sandbox = DaytonaSandbox(server.key, api_url=server.url)
    try:
        yield sandbox
    finally:
        sandbox.stop()


def test_the_first_steps_of_its_users(sandbox: DaytonaSandbox) -> None:
    assert sandbox.id
    assert sandbox.is_alive()
    response = sandbox.execute("echo out; echo err >&2; exit 3")
    assert (response.exit_code, response.truncated) == (3, False)
    assert sorted(response.output.split()) == ["err", "out"]
    assert sandbox.write("rel dir/rel.txt", "hello\n").error is None
    assert sandbox.execute("cat 'rel dir/rel.txt'").output == "hello\n"
    assert sandbox.read("rel dir/rel.txt") == "     1\thello"
    assert sandbox.edit("rel dir/rel.txt", "hello", "bye").occurrences == 1
    assert sandbox.read_bytes("rel dir/rel.txt") == b"bye\n"
    assert sandbox.read_bytes("missing") == b""
    assert [entry["name"] for entry in sandbox.ls_info("rel dir")] == ["rel.txt"]
    assert [info["name"] for info in sandbox.glob_info("**/*.txt")] == ["rel.txt"]
    assert [match["line"] for match in sandbox.grep_raw("bye")] == ["bye"]  # type: ignore[index]
    assert sandbox.exists("rel dir/rel.txt")
    assert not sandbox.exists("rel dir")


def test_bytes_survive_the_wire(sandbox: DaytonaSandbox) -> None:
    content = bytes(range(256)) * 1200
    sandbox.write("a b/big.bin", content)
    assert sandbox.read_bytes("a b/big.bin") == content


def test_out_of_time_is_124_with_what_was_printed(sandbox: DaytonaSandbox) -> None:
    response = sandbox.execute("echo begun; sleep 60", timeout=3)
    assert response.exit_code == 124
    assert response.output.startswith("begun\n")


def test_commands_in_the_background_go_over_the_wire(sandbox: DaytonaSandbox) -> None:
    handle = sandbox.execute_background("read line; echo got $line; exit 5")
    assert [info.running for info in sandbox.list_background()] == [True]
    assert sandbox.write_background(handle.shell_id, "something\n")
    printed = ""
    while True:
        output = sandbox.read_background(handle.shell_id, wait_seconds=60)
        printed += output.output
        if not output.running and not output.waiting:
            break
    assert printed.endswith("got something\n")
    assert output.exit_code == 5
    other = sandbox.execute_background("sleep 1000")
    assert sandbox.kill_background(other.shell_id)
    assert [info.running for info in sandbox.list_background()] == [False, False]


def test_the_key_and_the_address_may_come_from_the_environment(
    server: ServedProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAYTONA_API_KEY", server.key)
    monkeypatch.setenv("DAYTONA_API_URL", server.url)
    sandbox = DaytonaSandbox(env_vars={"GREETING": "hi there"})
    try:
        assert sandbox.execute("echo $GREETING; pwd").output == "hi there\n/home/daytona\n"
    finally:
        sandbox.stop()


def test_the_same_id_finds_the_same_sandbox(server: ServedProcess) -> None:
    first = DaytonaSandbox(server.key, "conversation 7", api_url=server.url)
    try:
        first.write("kept.txt", "here")
        first.close()
        again = DaytonaSandbox(server.key, "conversation 7", api_url=server.url)
        assert again.id == "conversation 7"
        assert again.read_bytes("kept.txt") == b"here"
        again.stop()
        assert again.execute("echo hi").gone
    finally:
        first.stop()


def test_one_with_an_id_does_not_live_for_ever_and_its_time_begins_anew_when_it_is_found(
    server: ServedProcess,
) -> None:
    with closing_backend(server) as deadline_of:
        kept = DaytonaSandbox(server.key, "kept", api_url=server.url)
        try:
            told = deadline_of("kept")
            assert told is not None
            assert 3600 < told <= 86_400
            kept.close()
            DaytonaSandbox(server.key, "kept", api_url=server.url, lifetime_seconds=3600).close()
            found = deadline_of("kept")
            assert found is not None
            assert found <= 3600
        finally:
            kept.stop()
        forever = DaytonaSandbox(server.key, "for ever", api_url=server.url, lifetime_seconds=None)
        try:
            assert deadline_of(make_name("for ever")) is None
        finally:
            forever.stop()


def test_a_sandbox_that_somebody_deleted_is_gone_and_says_so(server: ServedProcess) -> None:
    first = DaytonaSandbox(server.key, "shared", api_url=server.url)
    second = DaytonaSandbox(server.key, "shared", api_url=server.url)
    first.stop()
    response = second.execute("echo hi")
    assert response.output.startswith("Error: ")
    assert response.exit_code == 1
    assert response.gone
    assert not second.is_alive()
    second.close()


def test_a_wrong_key_is_told_at_once(server: ServedProcess) -> None:
    with pytest.raises(Exception, match=r"(?i)key|unauth|credential|401"):
        DaytonaSandbox("not-the-key", api_url=server.url)


@pytest.mark.check
def test_a_program_that_forgets_its_sandbox_leaves_none(server: ServedProcess) -> None:
    script = """
from corral.adapters.pydantic_ai import DaytonaSandbox
sandbox = DaytonaSandbox()
print(sandbox.async_sandbox.box.id)
raise RuntimeError("on the way out")
"""
    environment = os.environ | {"DAYTONA_API_KEY": server.key, "DAYTONA_API_URL": server.url}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert "on the way out" in done.stderr
    sandbox_id = done.stdout.strip()
    assert sandbox_id
    other = DaytonaSandbox(server.key, sandbox_id, api_url=server.url)
    try:
        assert other.async_sandbox.box is not None
        assert other.async_sandbox.box.id != sandbox_id, "it was still there"
    finally:
        other.stop()
