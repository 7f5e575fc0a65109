"""`corral bench --server`: it measures, and leaves nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest
from aiohttp.test_utils import TestClient, TestServer

from corral.errors import BackendUnavailableError
from corral_bench import server as bench
from corral_bench.constant import ORIGIN, make_app


@pytest.mark.check
def test_it_measures_and_leaves_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "corral.cli", "bench", "--server", "--runs", "1", "--restart", "2", "--json"]
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, env=env)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert [call["task"] for call in told["calls"]] == ["create", "code_run", "exec"]
    assert all(min(call["ours"], call["constant"], call["engine"]) > 0 for call in told["calls"])
    assert [figure["what"].split()[0] for figure in told["figures"]] == ["upload", "download", "the", "killed,"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.check
def test_it_measures_how_long_a_second_tenant_waits(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "corral.cli", "bench", "--tenants", "--quick", "--json"]
    command += ["--attack", "escapes", "--attack", "halves"]
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, env=env)
    told = {each["attack"]: each for each in json.loads(done.stdout)["attacks"]}
    assert set(told) == {"escapes", "halves"}
    # A connection that was cut is no answer. Some clients have all of it in the kernel's buffers before they notice.
    assert set(told["halves"]["answers"]) <= {"0", "101"}
    assert all(each["calls"] > 0 and each["failed"] == 0 and each["longest_wait_seconds"] > 0 for each in told.values())
    assert done.returncode == (0 if all(each["good"] for each in told.values()) else 1), done.stderr
    assert list(tmp_path.iterdir()) == []


async def test_without_the_sdk_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BackendUnavailableError, match="daytona SDK is not installed"):
        await bench.measure(runs=1, restart=0, tell=lambda text: None)


async def test_the_constant_server_repeats_what_it_was_told() -> None:
    app = make_app({"POST /api/sandbox": {"url": f"{ORIGIN}/toolbox"}}, origin="http://here")
    async with TestClient(TestServer(app)) as client:
        for _ in range(2):
            answer = await client.post("/api/sandbox", json={"any": "thing"})
            assert await answer.json() == {"url": "http://here/toolbox"}
        missing: aiohttp.ClientResponse = await client.get("/api/sandbox")
        assert missing.status == 404
