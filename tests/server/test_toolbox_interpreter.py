"""The stateful interpreter through the official SDK."""

import asyncio

import aiohttp
import pytest
from daytona import (
    AsyncDaytona,
    DaytonaBadRequestError,
    DaytonaError,
    DaytonaNotFoundError,
    DaytonaTimeoutError,
    Sandbox,
)
from daytona.common.errors import DaytonaConnectionError

from support.serving import ServedProcess


def test_variables_stay_from_one_run_to_the_next(sandbox: Sandbox) -> None:
    interpreter = sandbox.code_interpreter
    interpreter.run_code("import sys\nword = 'kept'")
    out: list[str] = []
    result = interpreter.run_code(
        "print(word); print('wrong', file=sys.stderr)", on_stdout=lambda message: out.append(message.output)
    )
    assert (result.stdout, result.stderr, result.error) == ("kept\n", "wrong\n", None)
    assert "".join(out) == "kept\n"


def test_an_error_has_name_value_and_traceback(sandbox: Sandbox) -> None:
    error = sandbox.code_interpreter.run_code("x = 1\nx / 0").error
    assert error is not None
    assert (error.name, error.value) == ("ZeroDivisionError", "division by zero")
    assert "line 2" in error.traceback


def test_a_run_out_of_time_keeps_the_state(sandbox: Sandbox) -> None:
    interpreter = sandbox.code_interpreter
    interpreter.run_code("word = 'kept'")
    with pytest.raises(DaytonaTimeoutError):
        interpreter.run_code("import time\ntime.sleep(1000)", timeout=1)
    assert interpreter.run_code("print(word)").stdout == "kept\n"


def test_an_interpreter_that_dies_is_told_and_begins_anew(sandbox: Sandbox) -> None:
    result = sandbox.code_interpreter.run_code("import os; os._exit(7)")
    assert result.error is not None
    assert "7" in result.error.value
    assert sandbox.code_interpreter.run_code("print(6 * 7)").stdout == "42\n"


def test_contexts_are_apart(sandbox: Sandbox) -> None:
    interpreter = sandbox.code_interpreter
    first = interpreter.create_context(cwd="/tmp")
    second = interpreter.create_context()
    interpreter.run_code("word = 'first'", context=first)
    assert interpreter.run_code("import os; print(word, os.getcwd())", context=first).stdout == "first /tmp\n"
    result = interpreter.run_code("print(word)", context=second)
    assert result.error is not None
    assert result.error.name == "NameError"
    assert {context.id for context in interpreter.list_contexts()} == {first.id, second.id}
    assert first.cwd == "/tmp"
    interpreter.delete_context(first)
    assert [context.id for context in interpreter.list_contexts()] == [second.id]
    with pytest.raises(DaytonaNotFoundError):
        interpreter.delete_context(first)
    with pytest.raises(DaytonaConnectionError, match="1008"):
        interpreter.run_code("1", context=first)


def test_variables_of_a_run_are_its_own(sandbox: Sandbox) -> None:
    code = "import os; print(os.environ.get('WORD'))"
    assert sandbox.code_interpreter.run_code(code, envs={"WORD": "x"}).stdout == "x\n"
    assert sandbox.code_interpreter.run_code(code).stdout == "None\n"
    with pytest.raises(DaytonaError, match="environment variable"):
        sandbox.code_interpreter.run_code(code, envs={"A-B": "x"})


def test_what_can_not_be_opened_is_refused(sandbox: Sandbox) -> None:
    with pytest.raises(DaytonaBadRequestError):
        sandbox.code_interpreter.create_context(cwd="/nowhere")


def test_much_output_comes_whole_in_small_frames(sandbox: Sandbox) -> None:
    result = sandbox.code_interpreter.run_code("print('ä' * 400_000)")
    assert result.stdout == "ä" * 400_000 + "\n"


async def test_the_async_client_does_the_same(async_daytona: AsyncDaytona) -> None:
    box = await async_daytona.create()
    try:
        context = await box.code_interpreter.create_context()
        await box.code_interpreter.run_code("n = 41", context=context)
        result = await box.code_interpreter.run_code("print(n + 1)", context=context)
        assert result.stdout == "42\n"
        with pytest.raises(DaytonaTimeoutError):
            await box.code_interpreter.run_code("while True: pass", timeout=1)
    finally:
        await async_daytona.delete(box)


async def test_a_client_that_goes_away_interrupts_its_run(sandbox: Sandbox, server: ServedProcess) -> None:
    url = f"{sandbox.toolbox_proxy_url}/{sandbox.id}/process/interpreter/execute"
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {server.key}"}) as client:
        async with client.ws_connect(url) as socket:
            await socket.send_json({"code": "word = 1\nprint('begun', flush=True)\nwhile True: pass", "timeout": 0})
            assert (await socket.receive_json(timeout=60))["text"].strip() == "begun"
        # The next run waits for its turn: it comes at all only because the first was interrupted.
        result = await asyncio.to_thread(sandbox.code_interpreter.run_code, "print(word)")
        assert result.stdout == "1\n"


@pytest.mark.parametrize("frame", ["not json", "[]", '{"code": 1}', '{"code": "1", "timeout": -1}'])
async def test_a_wrong_frame_is_refused_by_its_code(sandbox: Sandbox, server: ServedProcess, frame: str) -> None:
    url = f"{sandbox.toolbox_proxy_url}/{sandbox.id}/process/interpreter/execute"
    async with (
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {server.key}"}) as client,
        client.ws_connect(url) as socket,
    ):
        await socket.send_str(frame)
        message = await socket.receive(timeout=60)
        assert (message.type, message.data) == (aiohttp.WSMsgType.CLOSE, 1008)
