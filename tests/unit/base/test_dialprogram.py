"""Connections through a program: what it says first is not believed, and bytes pass both ways until one side ends."""

import asyncio
import contextlib
import socket
import sys
import warnings
from collections.abc import AsyncIterator

import pytest

from corral.backends.unsafe_subprocess import UnsafeSubprocessBackend
from corral.base.dialprogram import dial_by_program, relay_text
from corral.client.sandbox import AsyncSandbox
from corral.errors import CorralError, HostExhaustedError, PortClosedError, SandboxError
from corral.spec import make_spec


@pytest.fixture
async def box() -> AsyncIterator[AsyncSandbox]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        backend = UnsafeSubprocessBackend()
        async with await backend.create(make_spec()) as made:
            yield made
    await backend.aclose()


async def dial(box: AsyncSandbox, *argv: str, port: int = 1) -> tuple[socket.socket, list[asyncio.Task[None]]]:
    tasks: list[asyncio.Task[None]] = []
    process = await box.start(list(argv))
    try:
        made = await dial_by_program(
            process, port, sandbox_id=box.id, keep=lambda work: tasks.append(asyncio.create_task(work))
        )
    except BaseException:
        await asyncio.gather(*tasks)
        assert process.ended, "nothing is left"
        raise
    return made, tasks


@contextlib.asynccontextmanager
async def echoing(address: str) -> AsyncIterator[int]:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(65536):
            writer.write(piece)
            await writer.drain()
        writer.write(b"end")
        writer.close()

    server = await asyncio.start_server(echo, address)
    yield server.sockets[0].getsockname()[1]
    server.close()


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
async def test_bytes_pass_both_ways(address: str, box: AsyncSandbox) -> None:
    try:
        socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET).close()
    except OSError:
        pytest.skip("this machine has no ::1")
    async with echoing(address) as port:
        made, tasks = await dial(box, sys.executable, "-I", "-S", "-c", relay_text(port), port=port)
        reader, writer = await asyncio.open_connection(sock=made)
        content = bytes(range(256)) * 8192
        writer.write(content)
        writer.write_eof()
        assert await reader.read() == content + b"end"
        writer.close()
        await asyncio.gather(*tasks)


async def test_closed_port_is_said(box: AsyncSandbox) -> None:
    async with echoing("127.0.0.1") as port:
        pass
    with pytest.raises(PortClosedError, match=str(port)):
        await dial(box, sys.executable, "-c", relay_text(port), port=port)


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ("", SandboxError), ("x\n", SandboxError), ("?\n", SandboxError), ("+", SandboxError), ("+x\n", SandboxError),
        ("-\n", PortClosedError), ("!24\n", HostExhaustedError), ("!1\n", SandboxError), ("!99999\n", SandboxError),
        ("+" * 100_000, SandboxError),
    ],
)  # fmt: skip
async def test_program_is_not_believed(said: str, error: type[CorralError], box: AsyncSandbox) -> None:
    await box.files.write("said", said)
    with pytest.raises(error) as raised:
        await dial(box, "cat", "said")
    assert raised.type is error


async def test_first_bytes_may_come_with_the_answer(box: AsyncSandbox) -> None:
    made, tasks = await dial(box, "printf", "+\\nhello")
    reader, writer = await asyncio.open_connection(sock=made)
    assert await reader.read() == b"hello"
    writer.close()
    await asyncio.gather(*tasks)
