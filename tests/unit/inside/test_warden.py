"""A warden outlives its agent by nothing, whenever the agent is killed."""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from corral.inside.agent import warden

PATIENCE_SECONDS = 60.0


def _run_agent_that_is_killed_at_the_report(status: int) -> None:
    """An agent with one program, `sleep`. Its warden sees it die between the start of the program and its own watch."""
    agent = os.getpid()
    if os.fork() != 0:
        signal.pause()
    report = warden._report

    def kill_first(descriptor: int, message: dict[str, object]) -> None:
        os.kill(agent, signal.SIGKILL)
        while os.getppid() == agent:
            time.sleep(0.001)
        report(descriptor, message)

    warden._report = kill_first
    null = os.open(os.devnull, os.O_RDWR)
    request = {"argv": ["sleep", "1000"], "env": {}, "cwd": "/"}
    warden.watch_over(request, (null, null, null), status, None, agent=agent)


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="wardens are told of their parent's end on Linux")
def test_a_program_ends_if_its_agent_is_killed_while_it_is_started() -> None:
    reader, writer = os.pipe()
    agent = os.fork()
    if agent == 0:
        with suppress(BaseException):
            _run_agent_that_is_killed_at_the_report(writer)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        program = int(file.readline().partition(":")[2].strip(" }\n"))
        try:
            os.waitpid(agent, 0)
            deadline = time.monotonic() + PATIENCE_SECONDS
            while _is_running(program) and time.monotonic() < deadline:
                time.sleep(0.02)
            assert not _is_running(program), "it outlives its agent"
        finally:
            with suppress(ProcessLookupError):
                os.kill(program, signal.SIGKILL)
