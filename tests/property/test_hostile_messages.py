"""Any message of init, and any damaged file, gives a typed error on the host, which keeps working."""

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from corral.backends.embedded import detached, keepers, process
from corral.base.process import Ending
from corral.engine import wire
from corral.engine.client import check, receive_within
from corral.engine.errors import EngineError, ProtocolError
from corral.engine.state import DataFolder, read_state
from corral.errors import CorralError
from corral.protocol import SpawnRequest

HANG_GUARD_SECONDS = 10
TYPED = (CorralError, EngineError)

leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=10**300, max_value=10**400),
    st.floats(),  # JSON as Python reads it knows NaN and Infinity
    st.text(max_size=20),
    st.sampled_from(["exited", "timeout", "oom", "tree", "disk", "error", "9" * 5000]),
)
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
good_usage = {"cpu_seconds": 0.1, "cpu_of": "tree", "peak_memory_bytes": 1, "memory_of": "tree", "wall_seconds": 0.2}
good_ending: dict[str, Any] = {
    "ended": True,
    "code": 0,
    "signal": 0,
    "limit": "",
    "reason": "exited",
    "usage": good_usage,
}


def one_thing_wrong(good: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """A message that is right but for one field, which is missing or anything."""
    missing = st.sampled_from(sorted(good)).map(lambda name: {k: v for k, v in good.items() if k != name})
    replaced = st.builds(lambda name, value: {**good, name: value}, st.sampled_from(sorted(good)), values)
    return missing | replaced


endings = st.one_of(
    st.dictionaries(st.text(max_size=8), values, max_size=5),
    one_thing_wrong(good_ending),
    one_thing_wrong(good_usage).map(lambda usage: {**good_ending, "usage": usage}),
)


def test_good_ending_is_understood() -> None:
    assert process.read_ending(good_ending).reason == "exited"


@given(endings)
def test_end_of_a_program_is_an_ending_or_a_typed_error(message: dict[str, Any]) -> None:
    # What `_finish` turns into an EngineFaultError; any other error would end the thread that reads for all sandboxes.
    with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError, OverflowError, *TYPED):
        ending = process.read_ending(message)
        assert isinstance(ending, Ending)
        assert 0 <= ending.exit_code <= 0xFFFF
        assert ending.limit is None or len(ending.limit) <= 20


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = wire.make_pair()
    with ours, theirs:
        yield ours, theirs


def count_copies(*originals: int) -> int:
    """How many descriptors of this process lead to the same things; other threads open and close what is theirs."""
    wanted = {(found.st_dev, found.st_ino) for found in map(os.fstat, originals)}
    count = 0
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the listing's own, and whatever was closed meanwhile
            found = os.fstat(int(entry.name))
            count += (found.st_dev, found.st_ino) in wanted
    return count


packets = st.one_of(
    st.binary(max_size=300),
    st.binary(max_size=300).map(lambda data: b"I" + data),
    values.map(lambda value: b"I" + json.dumps(value).encode()[:60_000]),
    st.integers(1, 20_000).map(lambda depth: b"I" + b"[" * depth),
    st.integers(1, 8_000).map(lambda depth: b'I{"a":' + b'{"a":' * depth),
    st.just(b"M"),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # the pair is empty again after each example
@given(packet=packets, descriptors=st.integers(0, 4), allow_large=st.booleans())
def test_any_packet_is_a_message_or_a_protocol_error_and_leaks_nothing(
    pair: tuple[socket.socket, socket.socket], packet: bytes, descriptors: int, allow_large: bool
) -> None:
    sent = wire.memory_file(b"")
    try:
        socket.send_fds(pair[0], [packet or b"\0"], [sent] * descriptors)
        try:
            received = wire.receive(pair[1], allow_large=allow_large)
        except ProtocolError:
            received = None
        if received is not None:
            assert isinstance(received[0], dict)
            wire.close_all(received[1])
        assert count_copies(sent) == 1
    finally:
        os.close(sent)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    content=st.binary(max_size=200) | values.map(lambda value: json.dumps(value).encode()),
    kind=st.sampled_from(["file", "pipe", "folder"]),
)
def test_any_carrier_is_a_message_or_a_protocol_error_and_leaks_nothing(
    pair: tuple[socket.socket, socket.socket], content: bytes, kind: str
) -> None:
    opened = [wire.memory_file(content)] if kind == "file" else list(os.pipe())
    if kind == "folder":
        opened.append(os.open("/", os.O_RDONLY))
    beside = wire.memory_file(b"")
    opened.append(beside)
    before = count_copies(*opened)
    try:
        socket.send_fds(pair[0], [b"M"], [opened[-2], beside])
        with contextlib.suppress(ProtocolError):
            received = wire.receive(pair[1])
            assert received is not None
            wire.close_all(received[1])
        assert count_copies(*opened) == before
    finally:
        wire.close_all(opened)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(message=st.dictionaries(st.sampled_from(["error", "errno", "text", "hint", "step", "ok"]), values, max_size=6))
def test_any_answer_is_taken_or_raised_as_a_typed_error(
    pair: tuple[socket.socket, socket.socket], message: dict[str, Any]
) -> None:
    wire.send(pair[0], message)
    try:
        assert check(receive_within(pair[1], HANG_GUARD_SECONDS)).keys() == message.keys()
    except EngineError:
        return


REQUEST = SpawnRequest(
    argv=("true",), env={}, cwd="/", user="daytona", timeout=None, stdin=False, output_limit_bytes=1000
)
started = st.one_of(
    st.dictionaries(st.sampled_from(["started", "error", "errno", "text", "ended"]), values, max_size=4),
    st.just({"started": 7}),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(first=started, last=endings, descriptors=st.integers(0, 3), pty=st.booleans())
def test_a_program_under_a_lying_init_ends_with_a_result_or_a_typed_error(
    first: dict[str, Any], last: dict[str, Any], descriptors: int, pty: bool
) -> None:
    async def run() -> None:
        ours, theirs = wire.make_pair()
        with ours, theirs:
            request = SpawnRequest(**{name: getattr(REQUEST, name) for name in REQUEST.__slots__} | {"pty": pty})
            spawning = asyncio.ensure_future(
                process.spawn(ours, request, sandbox_id="x", uid=1, gid=1, give_up=lambda: None)
            )
            while not spawning.done():
                await asyncio.sleep(0)
                try:
                    theirs.setblocking(False)
                    received = wire.receive(theirs)
                except BlockingIOError:
                    continue
                assert received is not None
                with socket.socket(fileno=received[1][0]) as channel:
                    wire.close_all(received[1][1:])
                    socket.send_fds(channel, [b"I" + json.dumps(first).encode()], [0] * descriptors)
                    with contextlib.suppress(OSError):
                        channel.send(b"I" + json.dumps({**last, "ended": True}).encode())
                break
            program = await spawning
            await program.wait(timeout=HANG_GUARD_SECONDS)

    with contextlib.suppress(*TYPED):
        asyncio.run(run())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.one_of(st.binary(max_size=300), values.map(lambda value: json.dumps(value).encode())))
def test_any_state_file_is_a_state_or_none(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "state.json").write_bytes(text)
    state = read_state(tmp_path)
    assert state is None or isinstance(state, dict)


states = st.one_of(
    values,
    st.fixed_dictionaries({"detached": st.just(True), "info": values}),
    st.fixed_dictionaries(
        {"detached": values, "info": st.dictionaries(st.sampled_from(["name", "spec", "env", "root"]), values)}
    ),
    st.just({"detached": True}),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(state=states)
def test_any_state_is_found_listed_and_connected_to_with_typed_errors_only(tmp_path: Path, state: Any) -> None:
    data = DataFolder(tmp_path / "data")
    data.prepare()
    folder = data.folder("a1a1a1a1")
    folder.mkdir(exist_ok=True)
    (folder / "state.json").write_text(json.dumps(state))
    for found in keepers.find_all(data.path):
        assert found.sandbox_id == "a1a1a1a1"
    with contextlib.suppress(*TYPED):
        keepers.find(data.path, "a-name")
    assert keepers.list_all(data.path) == []
    with contextlib.suppress(*TYPED):
        asyncio.run(keepers.connect(data.path, "a1a1a1a1"))
    with contextlib.suppress(*TYPED):
        detached.list_all(data.path, "a1a1a1a1")
