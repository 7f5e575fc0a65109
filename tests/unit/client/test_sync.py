"""The sync API, on the fake."""

import asyncio
import inspect
import threading
import time
from collections.abc import Iterator

import pytest

from corral import AsyncSandbox, Sandbox
from corral.backends.memory import MemoryBackend
from corral.base.files import AsyncFiles
from corral.base.process import AsyncProcess
from corral.client.sync import Files, Process, Recorded, ShellSession, Terminal
from corral.errors import ExitError, SandboxClosedError, SandboxGoneError
from corral.sessions import session, terminal
from corral.sessions.records import MemoryRecorded


@pytest.fixture
def backend() -> Iterator[MemoryBackend]:
    made = MemoryBackend()
    yield made
    assert made.count_living() == 0, "a sandbox was left behind"


def public(cls: type) -> set[str]:
    return {name for name, value in inspect.getmembers(cls) if not name.startswith("_") and callable(value)}


@pytest.mark.parametrize(
    ("sync", "base", "different"),
    [
        # The server passes batches on; the rules of tools ask for hard links.
        (Files, AsyncFiles, {"at", "list_batches", "glob_batches", "grep_batches", "find_linked"}),
        (
            Process,
            AsyncProcess,  # what a backend calls is not for users
            {
                "aclose",
                "end_gone",
                "end_rest",
                "end_tree",
                "feed",
                "leave_out",
                "finish",
                "record",
                "resume_reading",
                "room",
                "stop_waiting",
            }
            | {"clear_at_end", "tell_denied"},
        ),
        (Recorded, MemoryRecorded, {"describe"}),
        (ShellSession, session.ShellSession, {"attach", "open", "log_chunks"}),
        (Terminal, terminal.Terminal, {"attach", "open"}),
        (
            Sandbox,
            AsyncSandbox,
            {"aclose", "find_runtime", "fork", "around", "resolve", "tell"} | {"dial", "watch_denials"},
        ),  # for backends; a socket that never waits
    ],
)
def test_every_async_method_has_a_sync_one(sync: type, base: type, different: set[str]) -> None:
    assert public(base) - public(sync) <= different


def test_block_opens_and_closes(backend: MemoryBackend) -> None:
    with Sandbox(backend=backend, env={"A": "1"}) as box:
        assert box.exec("echo $A").stdout == "1\n"
        assert box.spec.env == {"A": "1"}
        assert not box.closed
    assert box.closed
    with pytest.raises(SandboxClosedError):
        box.exec("true")
    with pytest.raises(SandboxClosedError):
        box.files.list()
    box.close()


def test_streams_are_plain_iterators(backend: MemoryBackend) -> None:
    with Sandbox(backend=backend) as box:
        assert box.files.write("file", iter([b"a", b"b"])) == 2  # type: ignore[arg-type]
        assert list(box.files.read_stream("file", chunk_bytes=1)) == [b"a", b"b"]
        assert box.exec(["cat"], stdin=(piece for piece in (b"x", b"y"))).stdout == "xy"  # type: ignore[arg-type]
        assert box.files.unpack("copy", box.files.pack(".")) == 2  # type: ignore[arg-type]


def test_iterator_that_is_left_is_closed(backend: MemoryBackend) -> None:
    with Sandbox(backend=backend) as box:
        process = box.start("echo one; cat")
        for chunk in process.output():
            assert chunk.data == b"one\n"
            break
        process.write("two")
        process.close_stdin()
        assert process.wait().stdout == "one\ntwo"
        with box.start(["sleep", "1000"]) as other:
            assert other.pid > 0
        assert other.wait().reason == "cancelled"


def test_errors_pass_through(backend: MemoryBackend) -> None:
    with Sandbox(backend=backend) as box, pytest.raises(ExitError) as caught:
        box.exec("exit 3", check=True)
    assert caught.value.result.exit_code == 3


def test_works_inside_a_running_loop(backend: MemoryBackend) -> None:
    async def notebook() -> str:
        with Sandbox(backend=backend) as box:
            return box.exec("echo hi").stdout

    assert asyncio.run(notebook()) == "hi\n"


def test_callback_that_calls_again_is_told(backend: MemoryBackend) -> None:
    with Sandbox(backend=backend) as box, pytest.raises(RuntimeError, match="async"):
        box.exec("echo x", on_output=lambda chunk: print(box.exec("true")))


def test_threads_share_it(backend: MemoryBackend) -> None:
    outputs: list[str] = []
    with Sandbox(backend=backend) as box:
        threads = [threading.Thread(target=lambda: outputs.append(box.exec("echo hi").stdout)) for _ in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert outputs == ["hi\n"] * 10


def test_forgotten_sandbox_is_ended(backend: MemoryBackend) -> None:
    box = Sandbox(backend=backend)
    assert backend.count_living() == 1
    del box
    for _ in range(1000):  # on the portal's thread, in its own time
        if backend.count_living() == 0:
            break
        time.sleep(0.01)
    assert backend.count_living() == 0


def test_detached_sandbox_is_found_again(backend: MemoryBackend) -> None:
    with Sandbox(backend=backend) as box:
        box.files.write("kept", "x")
        box.detach(name="mine")
    assert [info.name for info in Sandbox.list(backend=backend)] == ["mine"]
    with Sandbox.connect("mine", backend=backend) as again:
        assert again.files.read("kept") == b"x"
        again.kill()
    with pytest.raises(SandboxGoneError):
        Sandbox.connect("mine", backend=backend)


def test_signatures_are_those_of_the_async_ones() -> None:
    assert inspect.signature(Sandbox.exec) == inspect.signature(AsyncSandbox.exec)
    assert Sandbox.exec.__doc__ == AsyncSandbox.exec.__doc__


def test_a_sandbox_shows_its_id_and_its_state() -> None:
    with Sandbox(backend="memory") as box:
        assert repr(box) == f"<Sandbox {box.id} running>"
        assert repr(box.async_sandbox) == f"<AsyncSandbox {box.id} running>"
    assert repr(box) == f"<Sandbox {box.id} closed>"
    assert repr(AsyncSandbox(backend="memory")) == "<AsyncSandbox on memory, not open>"
