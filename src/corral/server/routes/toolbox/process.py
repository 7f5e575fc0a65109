"""Running programs: a shell command, or a code snippet in a new process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from corral.base.command import with_bash
from corral.errors import BackendUnavailableError, InvalidCommandError, WorkdirError
from corral.results import ExecResult
from corral.server.answers import Large, LongText
from corral.server.creating import LANGUAGES, language_of
from corral.server.fairness import SLICE_BYTES
from corral.server.faults import Fault, bad_request
from corral.server.log import text_of
from corral.server.routing import ApiCall, Table
from corral.server.settings import OUTPUT_LIMIT_BYTES
from corral.server.wire.toolbox import Artifacts, CodeRunRequest, CodeRunResponse, ExecuteRequest, ExecuteResponse
from corral.sessions.interpreter.oneshot import run_with_charts

TABLE = Table("toolbox")

_TOLD_BYTES = 4000
"""How much of the output goes into the message of a timeout; the field `result` has more."""
_TOLD_RESULT_BYTES = 64 * 1024

# A text is no argument: `pkill -f server.py; ...` would find the shell that runs it, and end that too. A short one
# comes by a variable, which is gone before it runs. A long one comes by standard input, since the kernel bounds a
# variable, and is read whole before any of it runs: what the command itself reads is then at its end, instead of the
# rest of the text.
_VARIABLE = "CORRAL_COMMAND_TEXT"
_READ_SHORT = f'eval "unset {_VARIABLE}; ${_VARIABLE}"'
_READ_LONG = 'eval "$(/bin/cat)"'
_SHORT_BYTES = 64 * 1024


def _shell_call(text: str) -> tuple[list[str], dict[str, str], str | None]:
    """The argv for a shell command, variables besides the caller's, and the standard input."""
    if len(text.encode("utf-8", "surrogateescape")) <= _SHORT_BYTES:
        return with_bash("-c", _READ_SHORT), {_VARIABLE: text}, None
    return with_bash("-c", _READ_LONG), {}, text


@TABLE.add("POST", "/process/execute", body=ExecuteRequest, large_body=True, answers={200: ExecuteResponse})
async def execute_command(call: ApiCall) -> Any:
    """Run a shell command and wait for it."""
    handle, body = call.sandbox, call.body
    if not body.command.strip():
        raise bad_request("the command is empty")
    if "\0" in body.command:
        raise bad_request("the command contains a NUL character")
    folder = handle.resolve(body.cwd or ".")
    argv, variables, stdin = _shell_call(body.command)
    try:
        result = await handle.box.exec(
            argv,
            cwd=folder,
            env={**handle.environment(body.envs), **variables},
            stdin=stdin,
            user=handle.program_user,
            timeout=body.timeout or None,
            output_limit_bytes=OUTPUT_LIMIT_BYTES,
        )
    except WorkdirError as error:
        return ExecuteResponse(exit_code=-1, result=f"{error}")
    refuse_timeout(result, body.timeout)
    return _with_output(ExecuteResponse(exit_code=result.exit_code, result=""), result.output_bytes)


@TABLE.add("POST", "/process/code-run", body=CodeRunRequest, large_body=True, answers={200: CodeRunResponse})
async def code_run(call: ApiCall) -> Any:
    """Run a code snippet in a new process."""
    handle, body = call.sandbox, call.body
    language = (body.language or language_of(handle.row.labels)).lower()
    if language not in LANGUAGES:
        raise bad_request(f"language {language[:40]!r} is not supported; use one of {', '.join(LANGUAGES)}")
    charts: Sequence[Mapping[str, object]] = ()
    options: dict[str, Any] = {
        "args": tuple(body.argv or ()),
        "cwd": handle.resolve("."),
        "env": handle.environment(body.envs),
        "timeout": body.timeout or None,
        "output_limit_bytes": OUTPUT_LIMIT_BYTES,
    }
    result: ExecResult
    try:
        if language == "python":
            result = plotted = await run_with_charts(handle.box, body.code, **options)
            charts = plotted.charts
        else:
            result = await handle.box.run_code(body.code, language, **options)
    except (InvalidCommandError, BackendUnavailableError) as error:
        # No interpreter inside is the sandbox's lack, and the hint says what to install; trying again would not help.
        raise bad_request(text_of(error)) from error
    except WorkdirError as error:
        return CodeRunResponse(exit_code=-1, result=f"{error}")
    refuse_timeout(result, body.timeout)
    artifacts = Artifacts(charts=[dict(chart) for chart in charts]) if charts else None
    return _with_output(
        CodeRunResponse(exit_code=result.exit_code, result="", artifacts=artifacts), result.output_bytes
    )


def _with_output(answer: ExecuteResponse, output: bytes) -> Any:
    """The answer with the output: a long one is decoded and encoded as it is sent."""
    if len(output) > SLICE_BYTES:
        return Large(answer, texts={"result": LongText((output,))})
    answer.result = output.decode("utf-8", "replace")
    return answer


def refuse_timeout(result: ExecResult, timeout: float | None) -> None:
    """Raises: Fault, 408 with the output, if the program timed out."""
    if not result.timed_out:
        return
    output = result.output_bytes
    printed = f"; output: {_tail(output, _TOLD_BYTES)}" if output else "; no output"
    raise Fault(
        408,
        f"timeout: the command was killed after {timeout or result.usage.wall_seconds:g} s{printed}",
        code="PROCESS_EXECUTION_TIMEOUT",
        details={"exitCode": result.exit_code, "result": _tail(output, _TOLD_RESULT_BYTES)},
    )


def _tail(output: bytes, limit: int) -> str:
    text = output[-limit:].decode("utf-8", "replace")
    return text if len(output) <= limit else f"[{len(output) - limit} bytes left out] {text}"
