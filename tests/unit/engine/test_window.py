"""The sockets that init sends: they are what they are called, or nothing is taken."""

import contextlib
import fcntl
import json
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

if sys.platform != "linux":
    pytest.skip("the engine is Linux only", allow_module_level=True)

from corral.engine import window, wire
from corral.engine.errors import UnsupportedError
from corral.engine.perform import Stage
from corral.engine.recipe import BASE_FIRST_UID, UID_RANGE_SIZE
from corral.engine.uidrange import FIRST_UID, SLOTS
from corral.inside.ready import Loop
from support.leftovers import nothing_left_open


def datagrams(address: str = "127.77.0.1", port: int = 0) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind((address, port))
    return sock


def listener(*, listens: bool = True, address: str = "127.77.0.1") -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.bind((address, 0))
    if listens:
        sock.listen()
    return sock


def unix() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)


@pytest.mark.parametrize(
    ("names", "make"),
    [
        pytest.param(["tcp4"], listener, id="of our own network"),
        pytest.param(["tcp4"], lambda: listener(listens=False), id="does not listen"),
        pytest.param(["tcp4"], lambda: listener(address="127.0.0.1"), id="another address"),
        pytest.param(["tcp4"], datagrams, id="datagrams for a listener"),
        pytest.param(["dns"], datagrams, id="another port"),
        pytest.param(["tcp6"], listener, id="another family"),
        pytest.param(["dns"], unix, id="a local socket"),
        pytest.param(["other"], listener, id="another name"),
        pytest.param(["dns", "tcp4"], listener, id="fewer than names"),
        pytest.param([], listener, id="more than names"),
        pytest.param(None, listener, id="no names"),
        pytest.param(["tcp4", "tcp4"], listener, id="a name twice"),
        pytest.param([{}], listener, id="names that are none"),
    ],
)
def test_other_sockets_are_refused_and_closed(names: object, make: Callable[[], socket.socket]) -> None:
    with nothing_left_open(), pytest.raises(UnsupportedError):
        window.receive_sockets(names, [make().detach()])


def test_a_file_is_no_socket() -> None:
    with nothing_left_open(), pytest.raises(UnsupportedError):
        window.receive_sockets(["dns"], [os.open(os.devnull, os.O_RDONLY)])


def test_sockets_of_two_networks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    cookies = iter((1, 2, 3))
    monkeypatch.setattr(window, "_check", lambda sock, name: None)
    monkeypatch.setattr(window, "_find_network", lambda sock: next(cookies))
    with nothing_left_open(), pytest.raises(UnsupportedError, match="another network"):
        window.receive_sockets(["dns", "tcp4"], [datagrams().detach(), listener().detach()])


def test_an_old_kernel_cannot_tell() -> None:
    def refuse(sock: socket.socket) -> int:
        raise OSError(92, "no such option")

    with pytest.MonkeyPatch.context() as patched, nothing_left_open():
        patched.setattr(window, "_find_network", refuse)
        with pytest.raises(UnsupportedError) as caught:
            window.receive_sockets(["tcp4"], [listener().detach()])
    assert "5.14" in caught.value.hint


def test_every_gate_has_a_user_of_its_own() -> None:
    users = [window.choose_uid(FIRST_UID + slot * UID_RANGE_SIZE) for slot in range(SLOTS)]
    assert len(set(users)) == SLOTS
    assert min(users) > BASE_FIRST_UID
    assert max(users) < BASE_FIRST_UID + UID_RANGE_SIZE


def test_the_network_of_a_socket_is_a_number() -> None:
    with datagrams() as one, listener() as other:
        assert window._find_network(one) == window._find_network(other) > 0


def test_a_gate_that_was_asked_before_its_sandbox_is_handed_over_goes_on(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        child = stack.enter_context(subprocess.Popen(["sleep", "600"]))
        stack.callback(child.kill)
        ours, theirs = wire.make_pair()
        stack.enter_context(theirs)
        ours.setblocking(False)
        null = os.open(os.devnull, os.O_RDONLY)
        held = window.Window(tmp_path, child.pid, {}, null, transparent=True)
        held._gate = window._Gate(os.pidfd_open(child.pid), ours)
        loop = Loop()
        answered: list[str] = []
        held.attend(loop)
        held.finish_judging(lambda: answered.append("judged"))
        held.settle()
        assert answered == ["judged"]  # whoever waited knows; and now the keeper has it
        held.attend(loop)
        for answer in ({"ok": True, "ready": True}, {"ok": True, "judged": True}):
            theirs.send(json.dumps(answer).encode())
            loop.turn(10.0)
        assert answered == ["judged"]
        assert child.poll() is None
        assert held.descriptors()[1:], "the gate is still there"
        held.let_go()


def test_a_connection_that_waits_is_seen_whatever_the_numbers_of_descriptors() -> None:
    above = 1100  # more than `select` can look at, as of an init with hundreds of programs
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as stack:
        if soft <= above:
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, above + 100), hard))
            stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        high = stack.enter_context(socket.socket(fileno=fcntl.fcntl(listener, fcntl.F_DUPFD_CLOEXEC, above)))
        stage = Stage(cast(Any, None), cast(Any, None), cast(Any, None), listeners=[high])
        assert not stage.has_unjudged
        stack.enter_context(socket.create_connection(listener.getsockname()))
        assert stage.has_unjudged
