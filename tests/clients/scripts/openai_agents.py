"""The Daytona sandbox of openai-agents: commands, terminals, files, ports, the workspace as a tar, stop and resume."""

import asyncio
import io
from pathlib import Path

from agents.extensions.sandbox.daytona import DaytonaSandboxClient, DaytonaSandboxClientOptions
from agents.sandbox.errors import ExecTimeoutError, WorkspaceReadNotFoundError


async def fails(expected, awaitable) -> None:
    try:
        got = await awaitable
    except expected:
        return
    raise AssertionError(f"it gave {got!r} and raised nothing")


async def use(session) -> None:
    answer = await session.exec("echo $A; echo err >&2; exit 3")
    assert (answer.exit_code, sorted(answer.stdout.split() + answer.stderr.split())) == (3, [b"1", b"err"]), answer
    await fails(ExecTimeoutError, session.exec("sleep 600", timeout=2))
    await session.write(Path("dir/a.txt"), io.BytesIO(b"hello"))
    assert (await session.read(Path("dir/a.txt"))).read() == b"hello"
    await fails(WorkspaceReadNotFoundError, session.read(Path("none.txt")))
    for _ in range(2):
        await session.mkdir("x/y", parents=True)
    assert sorted(Path(entry.path).name for entry in await session.ls(".")) == ["dir", "x"]


async def use_port(session) -> None:
    await session.write(Path("page.txt"), io.BytesIO(b"made inside"))
    update = await session.pty_exec_start("python3 -um http.server 8000", tty=False, yield_time_s=1)
    shown = update.output
    while b"Serving" not in shown:
        shown += (await session.pty_write_stdin(session_id=update.process_id, chars="", yield_time_s=1)).output
    end = await session.resolve_exposed_port(8000)
    reader, writer = await asyncio.open_connection(end.host, end.port)
    writer.write(f"GET /page.txt HTTP/1.0\r\nHost: {end.host}:{end.port}\r\n\r\n".encode())
    answer = await reader.read()
    assert answer.startswith(b"HTTP/1.0 200"), answer
    assert answer.endswith(b"made inside"), answer
    writer.close()
    await session.pty_terminate_all()


async def use_processes(session) -> None:
    update = await session.pty_exec_start("cat", tty=True, yield_time_s=1)
    shown = update.output
    await session.pty_write_stdin(session_id=update.process_id, chars="six times\n", yield_time_s=1)
    update = await session.pty_write_stdin(session_id=update.process_id, chars="\x04exit 5\n", yield_time_s=1)
    while update.process_id is not None:
        shown += update.output
        update = await session.pty_write_stdin(session_id=update.process_id, chars="", yield_time_s=1)
    assert update.exit_code == 5, (update, shown)
    shown = b""
    update = await session.pty_exec_start("echo one; sleep 1; echo two; exit 6", tty=False, yield_time_s=1)
    while update.process_id is not None:
        shown += update.output
        update = await session.pty_write_stdin(session_id=update.process_id, chars="", yield_time_s=1)
    assert (update.exit_code, shown + update.output) == (6, b"one\ntwo\n"), (update, shown)


async def main() -> None:
    async with DaytonaSandboxClient() as client:
        options = DaytonaSandboxClientOptions(env_vars={"A": "1"}, pause_on_exit=True, exposed_ports=(8000,))
        session = await client.create(options=options)
        async with session:
            await use(session)
            await use_port(session)
            await use_processes(session)
            packed = (await session.persist_workspace()).read()
            await session.exec("rm -r dir")
            await session.hydrate_workspace(io.BytesIO(packed))
            kept = session.state.model_dump(mode="json")
        again = await client.resume(client.deserialize_session_state(kept))
        assert again.state.sandbox_id == session.state.sandbox_id
        again.state.pause_on_exit = False
        async with again:
            assert (await again.read(Path("dir/a.txt"))).read() == b"hello"
        await client.delete(again)


asyncio.run(main())
print("came to its end")
