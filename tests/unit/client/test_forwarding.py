"""Forwarding ports: who may connect, when nothing listens, and what a reader that stops reading costs."""

import asyncio
import contextlib
import ipaddress
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from corral.backends.memory import MemoryBackend
from corral.base.dialling import dial_loopback, port_closed
from corral.client import forwarding, peers
from corral.client.forwarding import Forward, random_loopback
from corral.client.sandbox import AsyncSandbox
from corral.errors import PortClosedError, SandboxGoneError, SpecError, gone

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def wait_for_ever() -> None:
    await asyncio.Event().wait()


def make(port: int, dial: forwarding.Dial | None = None, **options: str | int) -> Forward:
    def usual(wanted: int) -> Awaitable[socket.socket]:
        return dial_loopback(wanted, sandbox_id="s")

    given: dict[str, str | int | None] = {"local_port": None, "address": None, **options}
    return Forward(port, dial or usual, sandbox_id="s", wait_until_gone=wait_for_ever, **given)  # type: ignore[arg-type]


async def begin(forward: Forward) -> tuple[str, int]:
    forward.begin()
    host, _, port = forward.url.removeprefix("http://").rpartition(":")
    return host.strip("[]"), int(port)


async def ask(address: tuple[str, int], content: bytes) -> bytes:
    """What comes back until the connection is closed, in whatever way."""
    reader, writer = await asyncio.open_connection(*address)
    try:
        writer.write(content)
        writer.write_eof()
        return await reader.read()
    except OSError:
        return b""
    finally:
        writer.close()


@pytest.fixture
async def echo() -> AsyncIterator[int]:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.read())
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    yield int(server.sockets[0].getsockname()[1])
    server.close()


async def test_each_port_has_a_loopback_address_of_its_own(echo: int) -> None:
    forwards = [make(echo) for _ in range(3)]
    addresses = [await begin(forward) for forward in forwards]
    assert [port for _, port in addresses] == [echo] * 3
    hosts = {ipaddress.IPv4Address(host) for host, _ in addresses}
    assert len(hosts) == 3
    assert all(host in ipaddress.IPv4Network("127.64.0.0/10") for host in hosts)
    assert [await ask(address, b"ping") for address in addresses] == [b"ping"] * 3
    for forward in forwards:
        await forward.close()
        await forward.close()
    with pytest.raises(ConnectionRefusedError):
        await ask(addresses[0], b"ping")


def test_random_addresses_spare_the_one_of_sandboxes(monkeypatch: pytest.MonkeyPatch) -> None:
    base = int(ipaddress.IPv4Address("127.64.0.1"))
    offers = iter([int(ipaddress.IPv4Address("127.77.0.1")) - base, 5])
    monkeypatch.setattr(forwarding.secrets, "randbelow", lambda _: next(offers))
    assert random_loopback() == "127.64.0.6"


@pytest.mark.parametrize("user", [12345, None])
async def test_other_users_are_turned_away(user: int | None, echo: int, monkeypatch: pytest.MonkeyPatch) -> None:
    forward = make(echo)
    address = await begin(forward)
    monkeypatch.setattr(peers, "find_user", lambda *_: user)
    dialled: list[int] = []
    monkeypatch.setattr(forward, "_dial", dialled.append)
    assert (await ask(address, b"ping"), dialled) == (b"", [])
    await forward.close()


async def test_address_that_was_chosen_is_for_everybody(echo: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "find_user", lambda *_: 12345)
    forward = make(echo, address="127.0.0.1", local_port=free_port())
    assert await ask(await begin(forward), b"ping") == b"ping"
    await forward.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


TABLE = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     7        0 4242 1 0000000000000000
   1: 0100007F:A001 0900407F:1F90 01 00000000:00000000 00:00000000 00000000  1000        0 4243 1 0000000000000000
   2: 0100007F:A002 0900407F:1F90 04 00000000:00000000 00:00000000 00000000     0        0 0 1 0000000000000000
   3: 0900407F:1F90 0100007F:A001 01 00000000:00000000 00:00000000 00000000     0        0 4244 1 0000000000000000
"""


def test_owner_of_a_connection_is_found() -> None:
    if os.sys.byteorder != "little":  # type: ignore[attr-defined]
        pytest.skip("the table above is of a little-endian machine")
    ours = ("127.64.0.9", 8080)
    assert peers.find_user(("127.0.0.1", 0xA001), ours, TABLE) == 1000
    assert peers.find_user(("127.0.0.1", 0xA002), ours, TABLE) is None, "closed: the kernel names root as its owner"
    assert peers.find_user(("127.0.0.1", 0xA003), ours, TABLE) is None


async def test_client_with_a_socket_for_both_families_is_let_in(echo: int) -> None:
    """As those of Java: the kernel lists them in its table of IPv6."""
    forward = make(echo)
    host, port = await begin(forward)
    assert await ask((f"::ffff:{host}", port), b"ping") == (b"ping" if socket.has_dualstack_ipv6() else b"")
    await forward.close()


def test_user_behind_sudo_may_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("SUDO_UID", "1000")
    assert peers.permitted_users() == {0, 1000}
    monkeypatch.setattr(os, "geteuid", lambda: 1001)
    assert peers.permitted_users() == {0, 1001}


async def test_browser_is_told_that_nothing_listens_yet() -> None:
    async def closed(port: int) -> socket.socket:
        raise port_closed(port, sandbox_id="s")

    forward = make(8000, closed)
    address = await begin(forward)
    answer = await ask(address, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 502 ")
    assert b"nothing listens on port 8000" in answer
    assert await ask(address, b"\x16\x03\x01hello") == b"", "no text for other protocols"
    await forward.close()


async def test_it_ends_with_the_sandbox() -> None:
    async def ended(port: int) -> socket.socket:
        raise gone("s", op="dial")

    forward = make(8000, ended)
    address = await begin(forward)
    assert await ask(address, b"") == b""
    while not forward.ended:
        await asyncio.sleep(0.01)
    with pytest.raises(ConnectionRefusedError):
        await ask(address, b"")


async def test_reader_that_stops_makes_the_server_wait() -> None:
    sent = 0

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(bytes(65536))
                await writer.drain()
                sent += 65536
        writer.close()

    server = await asyncio.start_server(flood, "127.0.0.1", 0)
    forward = make(server.sockets[0].getsockname()[1])
    reader, writer = await asyncio.open_connection(*await begin(forward), limit=1024)
    before = -1
    while before != sent:  # what the kernel's buffers take is soon there, and then nothing moves
        before = sent
        await asyncio.sleep(0.3)
    assert 0 < sent < 64 << 20
    await reader.readexactly(sent)  # and it goes on
    writer.close()
    await forward.close()
    server.close()
    await asyncio.sleep(0.05)  # its handler notices the end


@pytest.mark.parametrize(
    ("options", "wrong"),
    [({"address": "localhost"}, "'localhost' is not an address"), ({"local_port": 70000}, "70000 is not a port")],
)
def test_wrong_places_are_refused(options: dict[str, str | int], wrong: str) -> None:
    with pytest.raises(SpecError, match=wrong):
        make(8000, **options)


async def test_taken_port_is_said(echo: int) -> None:
    with pytest.raises(SpecError, match=rf"can't listen on port {echo} of 127.0.0.1: .*in use"):
        make(8000, address="127.0.0.1", local_port=echo).begin()


async def test_backend_without_ports_says_so() -> None:
    async with AsyncSandbox(backend=MemoryBackend()) as box:
        with pytest.raises(NotImplementedError, match="expose"):
            await box.expose(8000)
    assert issubclass(PortClosedError, ConnectionRefusedError)
    assert issubclass(SandboxGoneError, Exception)


async def test_connection_that_comes_as_the_port_closes_is_closed_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[socket.socket] = []

    class Listener(socket.socket):
        def accept(self) -> tuple[socket.socket, object]:
            connection, peer = super().accept()
            kept.append(connection)
            forward.close_now = asyncio.ensure_future(forward.close())  # type: ignore[attr-defined]
            return connection, peer

    listen = forwarding._listen

    def listen_and_keep(port: int, **options: str | int | None) -> socket.socket:
        plain = listen(port, **options)  # type: ignore[arg-type]
        listener = Listener(fileno=plain.detach())
        listener.setblocking(False)
        return listener

    monkeypatch.setattr(forwarding, "_listen", listen_and_keep)
    forward = make(9)
    address = await begin(forward)
    assert await ask(address, b"too late") == b""
    await forward.close_now  # type: ignore[attr-defined]
    assert [connection.fileno() for connection in kept] == [-1]
