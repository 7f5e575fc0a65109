"""Texts that other programs read: clients look for words in messages, since not every client has a class for a code.

Looked for by `google-adk`, `harbor`, the suites of the SDKs, npm clients and others: "timeout", "not found" (without a
word of a directory, which some take for the answer that a folder is there), "already exists", "quota", "rate limit".
"""

import re
import uuid
from collections.abc import Callable, Iterator

import httpx
import pytest
from daytona import AsyncDaytona, CreateSandboxFromSnapshotParams, Daytona, DaytonaConfig, DaytonaError, Sandbox

from corral.server.settings import ServerLimits
from server.conftest import OpenInProcess
from support.serving import ServedProcess

Ask = Callable[[Sandbox], object]


@pytest.fixture(scope="module")
def box(daytona: Daytona) -> Iterator[Sandbox]:
    """One for all, with a session, a folder and a file."""
    box = daytona.create(CreateSandboxFromSnapshotParams(name=f"texts-{uuid.uuid4().hex[:8]}"))
    box.process.create_session("s")
    box.fs.create_folder("d", "755")
    for name in ("f", "closed"):
        box.fs.upload_file(b"x", name)
    box.fs.set_file_permissions("closed", mode="000")
    yield box
    daytona.delete(box)


ASKED: dict[str, tuple[Ask, str]] = {
    "exec out of time": (lambda box: box.process.exec("echo before; sleep 60", timeout=1), r"timeout.*before"),
    "snippet out of time": (lambda box: box.process.code_run("import time; time.sleep(60)", timeout=1), r"timeout"),
    "interpreter out of time": (lambda box: box.code_interpreter.run_code("while True: pass", timeout=1), r"timeout"),
    "file that is missing": (lambda box: box.fs.download_file("missing"), r"file not found: \S*/missing"),
    "info of what is missing": (lambda box: box.fs.get_file_info("missing"), r"file not found: \S*/missing"),
    "deleting what is missing": (lambda box: box.fs.delete_file("missing"), r"file not found: \S*/missing"),
    "list of what is missing": (lambda box: box.fs.list_files("missing"), r"not found"),
    "file that is a folder": (lambda box: box.fs.download_file("d"), r"is a directory"),
    "folder deleted as a file": (lambda box: box.fs.delete_file("d"), r"is a directory"),
    "folder that is a file": (lambda box: box.fs.list_files("f"), r"not a directory"),
    "file that may not be read": (lambda box: box.fs.download_file("closed"), r"permission denied"),
    "move onto what is there": (lambda box: box.fs.move_files("f", "d"), r"exists"),
    "session that is missing": (lambda box: box.process.get_session("missing"), r"session 'missing' not found"),
    "session twice": (lambda box: box.process.create_session("s"), r"already exists"),
    "command that is missing": (lambda box: box.process.get_session_command("s", "missing"), r"not found"),
    "terminal that is missing": (lambda box: box.process.get_pty_session_info("missing"), r"not found"),
    "context that is missing": (
        lambda box: box.code_interpreter.delete_context(type("C", (), {"id": "missing"})()),  # type: ignore[arg-type]
        r"not found",
    ),
    "branch of nothing": (lambda box: box.git.branches("missing"), r"not found|not a git repository"),
}


@pytest.mark.parametrize("what", ASKED)
def test_a_message_has_the_words_that_programs_look_for(box: Sandbox, what: str) -> None:
    ask, words = ASKED[what]
    with pytest.raises(Exception, match=rf"(?si){words}") as refused:
        ask(box)
    if "not found" in words:
        assert "directory" not in str(refused.value).lower()


def test_what_is_missing_is_said_in_bulk_and_over_plain_http(server: ServedProcess, box: Sandbox) -> None:
    base = f"{server.url.removesuffix('/api')}/toolbox/{box.id}"
    headers = {"Authorization": f"Bearer {server.key}"}
    bulk = httpx.post(f"{base}/files/bulk-download", json={"paths": ["missing"]}, headers=headers)
    assert "file not found: " in bulk.text
    one = httpx.get(f"{base}/files/download", params={"path": "missing"}, headers=headers).json()
    assert (one["statusCode"], one["code"]) == (404, "FILE_NOT_FOUND")
    assert re.match("file not found: ", one["message"])
    late = httpx.post(f"{base}/process/execute", json={"command": "sleep 60", "timeout": 1}, headers=headers).json()
    assert (late["statusCode"], late["code"]) == (408, "PROCESS_EXECUTION_TIMEOUT")
    assert "timeout" in late["message"]


def test_folders_that_clients_write_to_are_there(box: Sandbox) -> None:
    for folder in ("/workspace", "/workspaces", "/home/daytona"):
        box.fs.upload_file(b"here", f"{folder}/made/by-upload")
        assert box.process.exec(f"cd {folder} && echo there > by-exec && cat made/by-upload").result == "here"


def test_what_is_not_there_is_not_found(daytona: Daytona) -> None:
    with pytest.raises(DaytonaError, match="sandbox 'missing' not found"):
        daytona.get("missing")
    with pytest.raises(DaytonaError, match="snapshot 'missing' not found"):
        daytona.snapshot.get("missing")
    with pytest.raises(DaytonaError, match="snapshot 'missing' not found"):
        daytona.create(CreateSandboxFromSnapshotParams(snapshot="missing"))


async def test_keys_quotas_and_rates_are_named(open_in_process: OpenInProcess) -> None:
    async with open_in_process(limits=ServerLimits(bad_keys_per_minute=1)) as running:
        organisation = running.server.keyring.organisation_named("default")
        running.server.keyring.set_quota(organisation, sandboxes=0, cpu=None, memory_gib=None, disk_gib=None)
        async with AsyncDaytona(DaytonaConfig(api_url=running.url, api_key=running.key)) as daytona:
            with pytest.raises(DaytonaError, match="quota exceeded"):
                await daytona.create()
        async with AsyncDaytona(DaytonaConfig(api_url=running.url, api_key="wrong")) as daytona:
            with pytest.raises(DaytonaError, match="invalid API key"):
                await daytona.get("x")
            with pytest.raises(DaytonaError, match="rate limit"):
                await daytona.get("x")
