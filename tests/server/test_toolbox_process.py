"""Programs and snippets through the official SDK."""

import asyncio
import time

import pytest
from daytona import (
    AsyncDaytona,
    CodeRunParams,
    CreateSandboxFromSnapshotParams,
    Daytona,
    DaytonaBadRequestError,
    DaytonaNotFoundError,
    DaytonaTimeoutError,
    Sandbox,
)
from daytona.common.errors import DaytonaProcessExecutionTimeoutError
from daytona_toolbox_api_client.exceptions import ApiException

from support import leftovers
from support.serving import ServedProcess


def test_both_streams_come_in_order_with_the_exit_code(sandbox: Sandbox) -> None:
    answer = sandbox.process.exec("echo one; echo two >&2; echo three; exit 3")
    assert (answer.exit_code, answer.result) == (3, "one\ntwo\nthree\n")


def test_a_command_is_a_shell_text_of_any_length(sandbox: Sandbox) -> None:
    text = "x" * 500_000
    answer = sandbox.process.exec(f"value='{text}'\necho ${{#value}}\nif [[ a == a ]]; then echo bash; fi")
    assert answer.result == "500000\nbash\n"


def test_commands_are_run_by_bash_whatever_else_is_there(sandbox: Sandbox) -> None:
    for name in ("zsh", "fish", "ksh"):
        sandbox.fs.upload_file(b"#!/bin/sh\necho another shell\n", f".local/bin/{name}")
        sandbox.fs.set_file_permissions(f".local/bin/{name}", mode="755")
    answer = sandbox.process.exec('words="a b"; set -- $words; echo $# {1..3} *.none; [[ $0 == bash ]] && echo bash')
    assert answer.result == "2 1 2 3 *.none\nbash\n"


@pytest.mark.parametrize("filling", ["", "# " + "x" * 10_000 + "\n"], ids=["short", "long"])
def test_a_command_is_read_as_it_is_written(sandbox: Sandbox, filling: str) -> None:
    text = filling + 'cat\necho \'a  b\\n\' "$0" "${REPLY-unset}" <<EOF\nx\nEOF\ncat <<EOF\n  two\n\nlines \\\\ \nEOF\n'
    assert sandbox.process.exec(text).result == "a  b\\n bash unset\n  two\n\nlines \\ \n"


def test_a_command_is_no_argument_of_its_shell(sandbox: Sandbox) -> None:
    killed = sandbox.process.exec("sleep 4567 & pkill -f 'sleep 4567'; echo survived")
    assert (killed.exit_code, killed.result) == (0, "survived\n")
    assert sandbox.process.exec("-x").exit_code == 127
    assert sandbox.process.exec("env | grep -c CORRAL; echo ${CORRAL_COMMAND_TEXT-gone}").result == "0\ngone\n"


def test_a_command_has_its_variables_and_folder(sandbox: Sandbox) -> None:
    answer = sandbox.process.exec('echo "$WORD"; pwd', cwd="/tmp", env={"WORD": "a b $c"})
    assert answer.result == "a b $c\n/tmp\n"
    assert sandbox.process.exec("pwd").result == "/home/daytona\n"


def test_a_bad_name_of_a_variable_is_refused(sandbox: Sandbox) -> None:
    with pytest.raises(DaytonaBadRequestError, match="environment variable"):
        sandbox.process.exec("true", env={"A-B": "1"})


@pytest.mark.parametrize("command", ["", "  \n "])
def test_a_blank_command_is_refused(sandbox: Sandbox, command: str) -> None:
    with pytest.raises(DaytonaBadRequestError, match="empty"):
        sandbox.process.exec(command)


def test_a_missing_folder_is_told_as_a_result(sandbox: Sandbox) -> None:
    answer = sandbox.process.exec("true", cwd="/nowhere")
    assert answer.exit_code == -1
    assert "/nowhere" in answer.result


def test_a_timeout_ends_the_tree_and_tells_what_was_printed(sandbox: Sandbox) -> None:
    with pytest.raises(DaytonaProcessExecutionTimeoutError, match="part of it") as raised:
        sandbox.process.exec("echo part of it; sleep 4321 & sleep 4321", timeout=3)
    assert isinstance(raised.value, DaytonaTimeoutError)
    assert raised.value.status_code == 408
    # All are killed at once, but on a busy machine one of them may still be on its way out.
    assert leftovers.wait_until(
        lambda: "4321" not in sandbox.process.exec("cat /proc/*/cmdline | tr '\\0' ' '; true").result
    )


def test_a_child_in_the_background_does_not_delay_the_answer(sandbox: Sandbox) -> None:
    assert sandbox.process.exec("sleep 1000 & echo done").result == "done\n"


def test_what_is_not_utf_8_is_replaced(sandbox: Sandbox) -> None:
    assert sandbox.process.exec(r"printf 'a\377b\303\244'").result == "a\ufffdbä"


def test_twenty_megabytes_come_whole(sandbox: Sandbox) -> None:
    assert len(sandbox.process.exec("head -c 20000000 /dev/zero | tr '\\0' x").result) == 20_000_000


def test_more_than_is_kept_is_cut_with_a_note(sandbox: Sandbox) -> None:
    result = sandbox.process.exec("echo first; head -c 90000000 /dev/zero | tr '\\0' x; echo last").result
    assert len(result) < 40_000_000
    assert result.startswith("first\n")
    assert result.endswith("last\n")
    assert "bytes of stdout left out" in result


async def test_commands_of_one_sandbox_run_side_by_side(async_daytona: AsyncDaytona) -> None:
    box = await async_daytona.create()
    try:
        # Each waits for what the other does: one after the other, they would never end.
        first = "touch a; until [ -e b ]; do sleep 0.01; done; echo first"
        second = "touch b; until [ -e a ]; do sleep 0.01; done; echo second"
        answers = await asyncio.gather(box.process.exec(first, timeout=60), box.process.exec(second, timeout=60))
        assert [answer.result for answer in answers] == ["first\n", "second\n"]
    finally:
        await async_daytona.delete(box)


async def test_a_client_that_goes_away_ends_its_command(async_daytona: AsyncDaytona) -> None:
    box = await async_daytona.create()
    try:
        task = asyncio.create_task(box.process.exec("touch begun; sleep 5432"))
        await wait_until(box, "test -e begun")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await wait_until(box, "! grep -qs 543''2 /proc/[0-9]*/cmdline")
    finally:
        await async_daytona.delete(box)


async def wait_until(box, condition: str) -> None:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + 60
    while (await box.process.exec(condition)).exit_code != 0:
        assert time.monotonic() < deadline, f"never true: {condition}"
        await asyncio.sleep(0.05)


async def test_a_command_ends_with_not_found_when_its_sandbox_is_deleted(async_daytona: AsyncDaytona) -> None:
    box = await async_daytona.create()
    task = asyncio.create_task(box.process.exec("touch begun; sleep 5432"))
    await wait_until(box, "test -e begun")
    await async_daytona.delete(box)
    with pytest.raises(DaytonaNotFoundError):
        await asyncio.wait_for(task, 60)


# ------------------------------------------------------------------------------------------------------------ snippets


def test_a_snippet_is_run_with_arguments_and_variables(sandbox: Sandbox) -> None:
    code = "import os, sys\nprint(sys.argv[1:], os.environ['WORD'], os.getcwd())"
    answer = sandbox.process.code_run(code, params=CodeRunParams(argv=["a", "b c"], env={"WORD": "x"}))
    assert (answer.exit_code, answer.result) == (0, "['a', 'b c'] x /home/daytona\n")
    assert answer.artifacts.stdout == answer.result
    assert answer.artifacts.charts == []


def test_a_snippet_that_fails_shows_its_traceback(sandbox: Sandbox) -> None:
    answer = sandbox.process.code_run("x = 1\n1 / 0")
    assert answer.exit_code == 1
    assert "line 2" in answer.result
    assert "ZeroDivisionError" in answer.result


def test_a_snippet_out_of_time_is_a_408(sandbox: Sandbox) -> None:
    with pytest.raises(ApiException) as raised:
        sandbox.process.code_run("print('begun', flush=True)\nwhile True: pass", timeout=3)
    assert raised.value.status == 408
    assert "PROCESS_EXECUTION_TIMEOUT" in raised.value.body
    assert "begun" in raised.value.body


@pytest.mark.needs_node
def test_the_language_is_that_of_the_sandbox(daytona: Daytona) -> None:
    box = daytona.create(CreateSandboxFromSnapshotParams(language="javascript"))
    try:
        assert box.process.code_run("console.log(6 * 7)").result == "42\n"
    finally:
        daytona.delete(box)


def test_a_language_that_nothing_inside_runs_is_told_with_what_to_install(daytona: Daytona) -> None:
    box = daytona.create(CreateSandboxFromSnapshotParams(language="typescript"))
    try:
        told = box.process.code_run("const n: number = 42; console.log(n)").result
    except ApiException as error:
        told = f"{error.status} {error.body}"
    finally:
        daytona.delete(box)
    # Some machines have what it takes.
    assert told == "42\n" or (told.startswith("400 ") and "corral --data-dir … setup typescript" in told)


async def test_an_unknown_language_is_refused(async_daytona: AsyncDaytona, server: ServedProcess) -> None:
    import aiohttp

    box = await async_daytona.create()
    try:
        url = f"{box.toolbox_proxy_url}/{box.id}/process/code-run"
        headers = {"Authorization": f"Bearer {server.key}"}
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.post(url, json={"code": "1", "language": "cobol"}) as response,
        ):
            assert response.status == 400
            assert "cobol" in (await response.json())["message"]
        assert (await box.process.code_run("print(6 * 7)")).result == "42\n"
    finally:
        await async_daytona.delete(box)
