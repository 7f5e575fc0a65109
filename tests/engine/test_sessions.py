"""Sessions in a sandbox without bash, through the sync door, and after odd endings."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from corral import Sandbox
from corral.backends.embedded import EmbeddedBackend
from corral.client.sandbox import AsyncSandbox
from corral.errors import ExecError, SessionEndedError
from corral.sessions import records
from corral.sessions.session import ShellSession
from corral.spec import Spec
from support.user import OrdinaryUser

TOOLS = "cat sleep mkdir rm mkfifo head sh kill"


@pytest.fixture
async def box(tmp_path: Path) -> AsyncIterator[AsyncSandbox]:
    backend = EmbeddedBackend(tmp_path / "data")
    async with await backend.create(Spec()) as box:
        yield box
    await backend.aclose()


async def output(session: ShellSession, text: str) -> str:
    return (await session.logs((await session.run(text)).id)).output.decode()


async def count_sleepers(box: AsyncSandbox) -> int:
    """Programs that sleep for 4321 or 4322 seconds; those that are just becoming it are waited for."""
    text = "sleep 0.1; cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -cE '^432[12]$'"
    return int((await box.exec(text)).stdout)


async def test_a_session_whose_record_is_full_says_so(box: AsyncSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    session = await box.open_session("s")
    monkeypatch.setattr(records, "MAX_NOTES_BYTES", 10)
    with pytest.raises(ExecError, match="too many commands") as caught:
        await session.run("true")
    assert not isinstance(caught.value, SessionEndedError)
    assert not await session.ended()


async def test_command_that_is_interrupted_before_the_shell_got_to_it_has_its_exit_code(box: AsyncSandbox) -> None:
    session = await box.open_session("s")
    shell = (await output(session, "echo $$")).strip()
    await box.exec(f"kill -STOP {shell}", check=True)
    command = await session.run("echo never", wait=False)
    interrupting = asyncio.ensure_future(session.interrupt(command.id))
    await asyncio.wait([interrupting], timeout=0.3)
    await box.exec(f"kill -CONT {shell}", check=True)
    assert (await interrupting).exit_code == 130
    assert (await session.logs(command.id)).output == b""


async def test_plain_sh_does_it_all(box: AsyncSandbox) -> None:
    await box.exec(f"mkdir bin; for t in {TOOLS}; do ln -s $(command -v $t) bin/$t; done", check=True)
    path = f"{box.spec.workdir}/bin"
    session = await box.open_session("sh", env={"PATH": path})
    assert await output(session, "echo ${BASH_VERSION-none}; x=1; f() { echo f; }") == "none\n"
    for text in ("if then", "echo 'open", "exec >/dev/null", "exec 1>&- 2>&-", "set -x", ": ${nope?}", "return 2"):
        await session.run(text)
        await session.run("set +x 2>/dev/null")
        assert await output(session, "echo $x; f") == "1\nf\n", text
    for text in ("sleep 1000", "while :; do :; done", "g() { while :; do sleep 0.01; done; }; while :; do g; done"):
        command = await session.run(f"echo begun; {text}", wait=False)
        async for _ in session.follow(command.id):
            break
        assert (await session.interrupt(command.id)).exit_code == 130, text
    command = await session.run("read -r a; echo got $a", wait=False)
    await session.feed(command.id, "it\n")
    assert (await session.wait(command.id)).exit_code == 0
    assert (await session.logs(command.id)).output == b"got it\n"
    assert await output(session, "echo $x") == "1\n"


async def test_deleting_ends_what_a_dead_shell_left(box: AsyncSandbox) -> None:
    session = await box.open_session("s")
    await session.run("(trap '' TERM; exec sleep 4321) & sleep 4322 & exit 2")
    assert await count_sleepers(box) == 2
    await session.delete()
    assert await count_sleepers(box) == 0
    assert (await box.exec("ls -A /tmp")).stdout == ""


@pytest.mark.parametrize("detached", [False, True])
async def test_deleting_finds_what_left_the_session_of_a_dead_shell(box: AsyncSandbox, detached: bool) -> None:
    if detached:
        await box.detach()
    session = await box.open_session("s")
    other = await box.open_session("other")
    await other.run("setsid sleep 4321 &")
    await session.run("(trap '' TERM; exec setsid sleep 4321) & (setsid sleep 4322 &); exit 2")
    assert await count_sleepers(box) == 3
    await session.delete()
    assert await count_sleepers(box) == 1
    assert await output(other, "echo there") == "there\n"
    await box.kill()


LEFT_BEHIND = r"""
import asyncio
from corral import AsyncSandbox

async def main():
    async with AsyncSandbox() as box:
        session, other = await box.open_session("s"), await box.open_session("other")
        await other.run("setsid sleep 4321 &")
        await session.run("(setsid sleep 4321 &); exit 2")
        count = "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -c '^4321$'"
        await box.exec(f'while [ "$({count})" != 2 ]; do sleep 0.05; done', timeout=30, check=True)
        await session.delete()
        assert (await box.exec(count)).stdout == "1\n"
        print("FINE")

asyncio.run(main())
"""


@pytest.mark.needs_user
@pytest.mark.needs_userns
def test_ordinary_user_finds_what_left_the_session_of_a_dead_shell(ordinary_user: OrdinaryUser) -> None:
    done = ordinary_user.run(LEFT_BEHIND, timeout=60)
    assert done.stdout == "FINE\n", done.stderr


async def test_forgetting_a_record_spares_what_its_program_left(box: AsyncSandbox) -> None:
    recorded = await box.start_recorded("setsid sleep 4321 & echo", name="it")
    await recorded.wait()
    await recorded.forget()
    assert await count_sleepers(box) == 1
    again = await box.start_recorded("setsid sleep 4322 & echo; exec cat", name="it")
    async for _ in again.entries():
        break
    await again.end_rest()  # it runs
    assert await count_sleepers(box) == 2


async def test_deleting_ends_a_stubborn_tree(box: AsyncSandbox) -> None:
    session = await box.open_session("s")
    await session.run("trap '' TERM; setsid sleep 4321 & sleep 4322 &")
    assert await count_sleepers(box) == 2
    await session.delete()
    assert await count_sleepers(box) == 0


async def test_what_looks_like_a_mark_is_output(box: AsyncSandbox) -> None:
    session = await box.open_session("s")
    command = await session.run("printf '\\036%032d e %s 0\\036' 0 x; printf '\\036'; printf 'a\\000b\\377'")
    logs = await session.logs(command.id)
    assert logs.output == b"\x1e" + b"0" * 32 + b" e x 0\x1e\x1ea\0b\xff"


async def test_folder_that_was_removed_is_made_again(box: AsyncSandbox) -> None:
    session = await box.open_session("s")
    await session.run("x=1; rm -rf /tmp/.corral-session-*")
    assert await output(session, "echo $x") == "1\n"


async def test_late_output_belongs_to_the_command_it_comes_after(box: AsyncSandbox) -> None:
    session = await box.open_session("s")
    first = await session.run("(while [ ! -e go ]; do sleep 0.01; done; echo late; touch gone) & echo done")
    assert (await session.logs(first.id)).output == b"done\n"
    await box.exec("touch go; while [ ! -e gone ]; do sleep 0.01; done", timeout=30)
    assert (await session.logs(first.id)).output == b"done\nlate\n"
    second = await session.run("echo second")
    assert (await session.logs(second.id)).output == b"second\n"
    assert (await session.logs(first.id)).output == b"done\nlate\n"


def test_sync_door_has_sessions_and_terminals() -> None:
    with Sandbox() as box:
        session = box.open_session("work")
        session.run("cd /tmp; x=2")
        command = session.run("pwd; echo $x; echo err >&2")
        assert command.exit_code == 0
        assert [chunk.data for chunk in session.follow(command.id)] == [b"/tmp\n", b"2\n", b"err\n"]
        assert box.find_session("work").logs(command.id).stderr == b"err\n"
        session.run("exit 3")
        assert session.ended()
        with pytest.raises(SessionEndedError):
            session.run("echo")
        session.delete()
        terminal = box.open_pty("t", "echo shown; exit 4")
        assert b"".join(terminal.output()) == b"shown\r\n"
        assert terminal.wait().exit_code == 4
        assert terminal.info().exit_code == 4
        recorded = box.start_recorded(["cat"], name="cat")
        recorded.write("x")
        recorded.close_stdin()
        assert next(entry.data for entry in recorded.entries()) == b"x"
        assert [info.name for info in box.list_recorded()] == ["pty:t", "cat"]
