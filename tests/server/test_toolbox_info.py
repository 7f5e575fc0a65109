"""Facts about a sandbox: folders, variables, ports, use."""

import time

import httpx
import pytest
from daytona import (
    AsyncDaytona,
    CreateSandboxFromSnapshotParams,
    DaytonaBadRequestError,
    Sandbox,
    SessionExecuteRequest,
)

from corral.server.routes.toolbox.info import parse_listening
from support.serving import ServedProcess, make_client


@pytest.fixture
def client(sandbox: Sandbox, server: ServedProcess):  # type: ignore[no-untyped-def]
    """The toolbox of a sandbox, without the SDK."""
    base = f"{sandbox.toolbox_proxy_url}/{sandbox.id}"
    with httpx.Client(base_url=base, headers={"Authorization": f"Bearer {server.key}"}, timeout=60) as opened:
        yield opened


def test_home_and_working_folder(sandbox: Sandbox, client: httpx.Client) -> None:
    assert sandbox.get_user_home_dir() == "/home/daytona"
    assert sandbox.get_work_dir() == "/home/daytona"
    assert client.get("/project-dir").json() == {"dir": "/home/daytona"}


def test_variables_are_set_for_programs_to_come(sandbox: Sandbox) -> None:
    sandbox.update_env({"FIRST": "1", "SECOND": "2"})
    sandbox.update_env({"THIRD": "3"}, unset=["FIRST"])
    seen = 'echo "$FIRST-$SECOND-$THIRD"'
    assert sandbox.process.exec(seen).result == "-2-3\n"
    sandbox.process.create_session("s")
    assert sandbox.process.execute_session_command("s", SessionExecuteRequest(command=seen)).stdout == "-2-3\n"
    code = "import os; print(os.environ.get('FIRST'), os.environ['SECOND'])"
    assert sandbox.process.code_run(code).result == "None 2\n"
    assert sandbox.code_interpreter.run_code(code).stdout == "None 2\n"
    assert sandbox.process.exec(seen, env={"THIRD": "own"}).result == "-2-own\n"
    for bad in ({"A-B": "1"}, {"A": "\0"}, {"A": "x" * 200_000}):
        with pytest.raises(DaytonaBadRequestError):
            sandbox.update_env(bad)
    assert sandbox.process.exec(seen).result == "-2-3\n"


def test_variables_of_the_creation_are_unset_also_after_a_restart(own_server: ServedProcess) -> None:
    daytona = make_client(own_server)
    given = {"GIVEN": "1", "OTHER": "2", "SECRET": "place:holder"}
    sandbox = daytona.create(CreateSandboxFromSnapshotParams(env_vars=given))
    seen = 'echo "${GIVEN-none} ${OTHER-none} ${SECRET-none} ${LANG-none}"'
    usual = sandbox.process.exec("echo $LANG").result
    assert sandbox.process.exec(seen).result == f"1 2 place:holder {usual}"
    sandbox.update_env({}, unset=["GIVEN", "LANG", "no such"])
    url = f"{sandbox.toolbox_proxy_url}/{sandbox.id}/env"
    headers = {"Authorization": f"Bearer {own_server.key}"}
    answer = httpx.post(url, headers=headers, json={"set": {"NEW": "3"}, "unsetValuePrefix": "place:"})
    assert answer.json() == {"NEW": "3"}
    own_server.kill()
    own_server.start()
    assert sandbox.process.exec(seen).result == "none 2 none none\n"
    sandbox.process.create_session("s")
    command = SessionExecuteRequest(command=f"{seen}; echo $NEW")
    assert sandbox.process.execute_session_command("s", command).stdout == "none 2 none none\n3\n"
    assert sandbox.process.code_run("import os; print('GIVEN' in os.environ)").result == "False\n"
    sandbox.update_env({"GIVEN": "again"})
    assert sandbox.process.exec("echo $GIVEN").result == "again\n"
    assert sandbox.process.exec("echo $OTHER", env={"OTHER": "own"}).result == "own\n"


def test_ports_on_which_somebody_listens(sandbox: Sandbox, client: httpx.Client) -> None:
    assert client.get("/port").json() == {"ports": []}
    sandbox.process.create_session("s")
    command = "python3 -m http.server 7788 --bind 127.0.0.1"
    sandbox.process.execute_session_command("s", SessionExecuteRequest(command=command, run_async=True))
    deadline = time.monotonic() + 60
    while not client.get("/port/7788/in-use").json()["isInUse"]:
        assert time.monotonic() < deadline, "no program listens"
        time.sleep(0.05)
    assert client.get("/port").json() == {"ports": [7788]}
    assert client.get("/port/7789/in-use").json() == {"isInUse": False}
    for wrong in ("0", "65536", "abc", "-1", "٣"):
        assert client.get(f"/port/{wrong}/in-use").status_code == 400


def test_a_table_of_sockets_is_read() -> None:
    table = (
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
        "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 1 1\n"
        "   1: 0100007F:1F91 0100007F:9999 01 00000000:00000000 00:00000000 00000000  1000        0 1 1\n"
        "   2: 00000000000000000000000000000000:0050 00000000000000000000000000000000:0000 0A 0 0\n"
        "   3: nonsense 0 0A\n"
    )
    assert parse_listening(table) == {8080, 80}


def test_metrics_are_of_the_sandbox(sandbox: Sandbox, client: httpx.Client) -> None:
    sandbox.process.create_session("busy")
    command = SessionExecuteRequest(command="while :; do :; done", run_async=True)
    sandbox.process.execute_session_command("busy", command)
    deadline = time.monotonic() + 60
    while not (metrics := client.get("/system/metrics").json())["cpuUsedPct"]:
        assert time.monotonic() < deadline, "a program that computes without end uses no time"
    assert (metrics["cpuCount"], metrics["memTotal"], metrics["diskTotal"]) == (1, 1024**3, 3 * 1024**3)
    assert 0 <= metrics["memUsed"] <= 1024**3
    assert metrics["diskUsed"] + metrics["diskFree"] == 3 * 1024**3


def test_version_and_init_answer(client: httpx.Client) -> None:
    assert client.get("/version").json().keys() == {"version"}
    assert client.post("/init", json={"token": "x"}).status_code == 200
    assert client.post("/init").status_code == 200


async def test_the_async_client_does_the_same(async_daytona: AsyncDaytona) -> None:
    box = await async_daytona.create()
    try:
        assert await box.get_work_dir() == "/home/daytona"
        assert await box.get_user_home_dir() == "/home/daytona"
        await box.update_env({"A": "b"})
        assert (await box.process.exec("echo $A")).result == "b\n"
    finally:
        await async_daytona.delete(box)
