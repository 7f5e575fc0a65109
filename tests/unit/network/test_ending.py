"""TLS that ends at the gate: real TLS over loopback, with a server whose authority is the test's own."""

import asyncio
import base64
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from corral.network.authority import Mint, make_authority
from corral.network.ending import Ending
from corral.network.heads import MalformedHeadError
from corral.network.judge import Judge, RefusedError, Target
from corral.network.outside import Way
from corral.network.passage import Passage, Policy
from corral.network.rules import Address
from corral.network.settings import Authority, GateCredential, GateSecret, GateSettings
from corral.network.stream import SocketStream

HOST = "api.example.org"
PLACEHOLDER = "corral-secret-0123456789abcdef"
VALUE = "canary-value"
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class NoResolver:
    async def look_up(self, name: str) -> Sequence[Address]:
        raise AssertionError(name)


@dataclass
class World:
    """A server of TLS, the gate's passage before it, and what came of each connection."""

    authority: Authority
    """That of the sandbox."""
    port: int = 0
    received: bytearray = field(default_factory=bytearray)
    """By the server, in the clear."""
    ended: list[BaseException | None] = field(default_factory=list)
    done: asyncio.Event = field(default_factory=asyncio.Event)

    def context(self, *, protocols: Sequence[str] = (), trusted: bool = True) -> ssl.SSLContext:
        """A client's."""
        context = ssl.create_default_context(cadata=self.authority.certificate if trusted else None)
        if protocols:
            context.set_alpn_protocols(list(protocols))
        return context

    async def ask(self, *requests: bytes, name: str = HOST, context: ssl.SSLContext | None = None) -> bytes:
        """What comes for these requests, sent at once."""
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.port, ssl=context or self.context(), server_hostname=name
        )
        try:
            writer.write(b"".join(requests))
            await writer.drain()
            async with asyncio.timeout(10):
                return await reader.read()
        finally:
            writer.close()
            with contextlib.suppress(OSError, ssl.SSLError):
                await writer.wait_closed()

    async def outcome(self) -> BaseException | None:
        """How the connection ended for the gate."""
        async with asyncio.timeout(10):
            await self.done.wait()
        return self.ended[-1]


def request(*headers: str, target: str = "/", host: str = HOST, method: str = "GET", body: str = "") -> bytes:
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host}", *headers, "Connection: close", "", body]
    return "\r\n".join(lines).encode()


@contextlib.asynccontextmanager
async def world(
    tmp_path: Path, *, server_name: str = HOST, server_trusted: bool = True, secret_hosts: Sequence[str] = (HOST,),
    credentials: Sequence[GateCredential] = (), target: str = HOST, answer: bytes = ANSWER,
) -> AsyncIterator[World]:  # fmt: skip
    outer, mine = make_authority([server_name]), make_authority([HOST, "other.example.org"])
    made = World(mine)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, ssl.SSLError):
            while data := await reader.read(65536):
                made.received += data
                if made.received.endswith(b"\r\n\r\n") or b"last" in data:
                    writer.write(answer)
                    await writer.drain()
                    if b"Connection: close" in made.received:
                        break
        writer.close()

    trusted = tmp_path / "trusted.pem"
    trusted.write_text((outer if server_trusted else make_authority([server_name])).certificate)
    settings = GateSettings(
        mode="allow",
        rules=(HOST, "other.example.org"),
        ca_file=str(trusted),
        secrets=(GateSecret(PLACEHOLDER, VALUE, tuple(secret_hosts)),),
        credentials=tuple(credentials),
        authority=mine,
    )
    policy = Policy(Judge(settings, NoResolver(), is_own=lambda address: False), Ending(settings))
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=Mint(outer).context_for(server_name))
    place = server.sockets[0].getsockname()
    loop = asyncio.get_running_loop()

    async def gate(sock: socket.socket) -> None:
        out = socket.socket()
        out.setblocking(False)
        await loop.sock_connect(out, place)
        client, way = SocketStream(sock), Way(SocketStream(out), None)
        try:
            await Passage(client, way, Target(target, 443), lambda: policy).run()
            made.ended.append(None)
        except (RefusedError, MalformedHeadError, OSError) as error:
            made.ended.append(error)
        finally:
            client.close()
            way.stream.close()
            made.done.set()

    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    made.port = listener.getsockname()[1]
    tasks: set[asyncio.Task[None]] = set()

    async def accept() -> None:
        while True:
            sock, _ = await loop.sock_accept(listener)
            tasks.add(asyncio.create_task(gate(sock)))

    accepting = asyncio.create_task(accept())
    try:
        yield made
    finally:
        for task in (accepting, *tasks):
            task.cancel()
        await asyncio.gather(accepting, *tasks, return_exceptions=True)
        listener.close()
        server.close()
        with contextlib.suppress(asyncio.CancelledError):
            await server.wait_closed()


async def test_value_takes_the_place_of_the_placeholder(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        answer = await made.ask(request(f"Authorization: Bearer {PLACEHOLDER}", "X-Other: 1"))
        assert answer.endswith(b"ok")
        assert f"\r\nAuthorization: Bearer {VALUE}\r\n".encode() in made.received
        assert PLACEHOLDER.encode() not in made.received
        assert await made.outcome() is None


async def test_basic_login_is_filled_in(tmp_path: Path) -> None:
    login = base64.b64encode(f"me:{PLACEHOLDER}".encode()).decode()
    async with world(tmp_path) as made:
        await made.ask(request(f"Authorization: Basic {login}"))
        assert base64.b64encode(f"me:{VALUE}".encode()) in made.received


async def test_placeholder_elsewhere_stays(tmp_path: Path) -> None:
    body = f"{PLACEHOLDER} last"
    async with world(tmp_path) as made:
        await made.ask(
            request(
                f"X-Api-Key: {PLACEHOLDER}", f"Content-Length: {len(body)}", target=f"/?key={PLACEHOLDER}",
                method="POST", body=body,
            )
        )  # fmt: skip
        assert made.received.count(PLACEHOLDER.encode()) == 3
        assert VALUE.encode() not in made.received


async def test_each_request_of_a_connection_is_filled_in(tmp_path: Path) -> None:
    first = request(f"Authorization: {PLACEHOLDER}").replace(b"Connection: close\r\n", b"")
    async with world(tmp_path, answer=ANSWER) as made:
        reader, writer = await asyncio.open_connection("127.0.0.1", made.port, ssl=made.context(), server_hostname=HOST)
        for _ in range(3):
            writer.write(first)
            assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
        writer.close()
        assert made.received.count(VALUE.encode()) == 3


@pytest.mark.parametrize(
    "bad",
    [
        request(f"Authorization: {PLACEHOLDER}", host="other.example.org"),
        request(f"Authorization: {PLACEHOLDER}", host=f"{HOST}:444"),
        request(f"Authorization: {PLACEHOLDER}", "Host: other.example.org"),
        request(f"Authorization: {PLACEHOLDER}", f"authorization: {PLACEHOLDER}"),
        request(f"Authorization: {PLACEHOLDER}", "authorization: mine"),
        request("Authorization: x", f" {PLACEHOLDER}"),
        request(f"Authorization : {PLACEHOLDER}"),
        request(f"Authorization: {PLACEHOLDER}", "Content-Length: 1", "Transfer-Encoding: chunked"),
        request(f"Authorization: {PLACEHOLDER}", target="http://other.example.org/"),
        request(f"Authorization: {PLACEHOLDER}\rX: 1"),
        request(f"Authorization: {PLACEHOLDER}\nX: 1"),
        request(f"Authorization: {PLACEHOLDER}", method="CONNECT", target="other.example.org:443"),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
async def test_request_that_could_be_read_in_two_ways_is_refused(tmp_path: Path, bad: bytes) -> None:
    async with world(tmp_path) as made:
        answer = await made.ask(bad)
        assert answer.split(b" ")[1] in (b"403", b"400")
        assert b"corral: " in answer
        assert isinstance(await made.outcome(), RefusedError | MalformedHeadError)
        assert VALUE.encode() not in made.received


async def test_request_that_follows_at_once_is_checked_as_well(tmp_path: Path) -> None:
    first = request(f"Authorization: {PLACEHOLDER}").replace(b"Connection: close\r\n", b"")
    async with world(tmp_path) as made:
        answer = await made.ask(first, request(f"Authorization: {PLACEHOLDER}", host="other.example.org"))
        assert answer.startswith(b"HTTP/1.1 200")
        assert b"HTTP/1.1 403" in answer
        assert made.received.count(VALUE.encode()) == 1


async def test_client_of_http_2_alone_is_refused(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        with pytest.raises(ssl.SSLError, match="no application protocol"):
            await made.ask(request(), context=made.context(protocols=["h2"]))
        outcome = await made.outcome()
        assert isinstance(outcome, RefusedError)
        assert outcome.rule == "secret"


async def test_client_of_both_speaks_http_1(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        context = made.context(protocols=["h2", "http/1.1"])
        assert (await made.ask(request(), context=context)).startswith(b"HTTP/1.1 200")


async def test_client_that_trusts_another_certificate_alone_is_a_denial(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        with pytest.raises(ssl.SSLCertVerificationError):
            await made.ask(request(), context=made.context(trusted=False))
        outcome = await made.outcome()
        assert isinstance(outcome, RefusedError)
        assert outcome.rule == "secret"
        assert not made.received


@pytest.mark.parametrize("wrong", [{"server_trusted": False}, {"server_name": "evil.example.org"}])
async def test_server_must_have_a_valid_certificate(tmp_path: Path, wrong: dict[str, object]) -> None:
    async with world(tmp_path, **wrong) as made:  # type: ignore[arg-type]
        answer = await made.ask(request(f"Authorization: {PLACEHOLDER}"))
        assert answer.startswith(b"HTTP/1.1 502")
        assert b"certificate is not valid" in answer
        assert not made.received


async def test_hosts_without_a_secret_are_passed_through(tmp_path: Path) -> None:
    async with world(tmp_path, server_name="other.example.org", target="other.example.org") as made:
        context = ssl.create_default_context(cafile=str(tmp_path / "trusted.pem"))
        assert (await made.ask(request(host="other.example.org"), name="other.example.org", context=context)).endswith(
            b"ok"
        )


async def test_name_in_tls_decides_what_is_filled_in(tmp_path: Path) -> None:
    """The connection is for a host without a secret; TLS names one with."""
    async with world(tmp_path, target="other.example.org") as made:
        assert (await made.ask(request(f"Authorization: {PLACEHOLDER}"))).endswith(b"ok")
        assert VALUE.encode() in made.received


async def test_login_of_an_index_is_added(tmp_path: Path) -> None:
    login = GateCredential(f"{HOST}:443", "Authorization", "Basic c2VjcmV0")
    async with world(tmp_path, secret_hosts=["unused.example.org"], credentials=[login]) as made:
        await made.ask(request())
        assert b"\r\nAuthorization: Basic c2VjcmV0\r\n" in made.received


async def test_long_bodies_pass_both_ways(tmp_path: Path) -> None:
    large = b"x" * 3_000_000
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(large) + large
    async with world(tmp_path, answer=answer) as made:
        body = "y" * 2_000_000 + "last"
        got = await made.ask(request(f"Content-Length: {len(body)}", method="POST", body=body))
        assert got.endswith(large)
        assert made.received.endswith(b"last")
