"""The resolver of a sandbox, asked over loopback."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from ipaddress import ip_address
from pathlib import Path

import pytest

from corral.network import denials
from corral.network.denials import DenialLog
from corral.network.judge import Judge
from corral.network.limits import Meter
from corral.network.lookups import Lookups
from corral.network.names import NameTable
from corral.network.rules import Address
from corral.network.settings import GateLimits, GateSettings

A, SRV, AAAA, HTTPS = 1, 33, 28, 65


class Known:
    """Every name is known."""

    async def look_up(self, name: str) -> Sequence[Address]:
        return [ip_address("93.184.215.14")]


class Client:
    """A program that asks."""

    def __init__(self, place: tuple[str, int], file: Path) -> None:
        self._place, self._file, self._seen = place, file, 0

    async def ask(self, name: str, kind: int = A) -> tuple[int, bytes]:
        """The code of the answer, and the address in it."""
        labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            sock.connect(self._place)
            sock.send(struct.pack("!6H", 7, 0x100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!HH", kind, 1))
            data = await asyncio.get_running_loop().sock_recv(sock, 2000)
        _, flags, _, records, _, _ = struct.unpack_from("!6H", data)
        return flags & 0xF, data[-4:] if records else b""

    def denied(self) -> list[tuple[str, str]]:
        """What was refused since the last call."""
        found = denials.read_since(self._file, self._seen)
        self._seen += sum(each.count for each in found)
        return [(each.host, each.rule) for each in found]


@asynccontextmanager
async def serving(folder: Path, *rules: str, mode: str = "allow", hostname: str = "") -> AsyncIterator[Client]:
    settings = GateSettings(mode=mode, rules=rules, hostname=hostname)
    judge = Judge(settings, Known(), is_own=lambda address: False)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock, (folder / "denials").open("w+b") as file:
        sock.bind(("127.0.0.1", 0))
        lookups = Lookups(sock, judge, NameTable(), Meter(GateLimits()), DenialLog(file.fileno()))
        lookups.open()
        try:
            yield Client(sock.getsockname(), folder / "denials")
        finally:
            asyncio.get_running_loop().remove_reader(sock)


async def test_a_permitted_name_has_an_address_of_one_kind(tmp_path: Path) -> None:
    async with serving(tmp_path, "example.org") as client:
        code, address = await client.ask("Example.org")
        assert (code, address[0]) == (0, 198)
        for kind in (AAAA, HTTPS, SRV):
            assert await client.ask("example.org", kind) == (0, b"")
        assert client.denied() == []


async def test_another_name_does_not_exist_and_is_one_attempt(tmp_path: Path) -> None:
    async with serving(tmp_path, "example.org") as client:
        for kind in (A, AAAA):
            assert await client.ask("example.com", kind) == (3, b"")
        assert client.denied() == [("example.com", "policy")]


@pytest.mark.parametrize("mode", ["none", "allow"])
async def test_names_of_the_sandbox_itself_are_no_attempt(mode: str, tmp_path: Path) -> None:
    async with serving(tmp_path, mode=mode, hostname="Builder") as client:
        for name in ("builder", "localhost", "app.localhost"):
            assert await client.ask(name) == (0, bytes((127, 0, 0, 1)))
            assert await client.ask(name, AAAA) == (0, b"")
        assert client.denied() == []
        assert await client.ask("localhost.example.org") == (3, b"")
        assert client.denied() == [("localhost.example.org", "no network" if mode == "none" else "policy")]


async def test_services_of_a_permitted_name_are_no_attempt(tmp_path: Path) -> None:
    """apt asks for them before it connects."""
    async with serving(tmp_path, "example.org") as client:
        assert await client.ask("_http._tcp.example.org", SRV) == (3, b"")
        assert client.denied() == []
        assert await client.ask("_http._tcp.example.com", SRV) == (3, b"")
        assert await client.ask("_http.secret.example.org", SRV) == (3, b"")
        assert [host for host, _ in client.denied()] == ["_http._tcp.example.com", "_http.secret.example.org"]
