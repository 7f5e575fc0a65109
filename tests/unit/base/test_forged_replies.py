"""Replies from inside that no agent of ours would give: each is a file error, never a bare one, and bounded."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from corral.base import files as base_files
from corral.base.process import AsyncProcess
from corral.base.shellfiles.files import ShellFiles
from corral.base.taskfiles import TaskFiles, task_request
from corral.errors import SandboxFileError, SandboxFileTooLargeError
from corral.protocol import SpawnRequest
from support.toy_backend import ToyProcess

ENV = {"PATH": "/usr/bin:/bin"}


def files_by_agent(script: str) -> TaskFiles:
    async def spawn(message: dict[str, Any], stdin: bool) -> AsyncProcess:
        return ToyProcess(replace(task_request(stdin=stdin), argv=("sh", "-c", script), env=ENV), sandbox_id="x")

    return TaskFiles(spawn, workdir="/tmp", sandbox_id="x", guard=lambda: None, disk_bytes=lambda: 1 << 30)


def files_by_shell(script: str) -> ShellFiles:
    async def spawn(request: SpawnRequest) -> AsyncProcess:
        return ToyProcess(replace(request, argv=("sh", "-c", script), env=ENV), sandbox_id="x")

    return ShellFiles(spawn, user="", workdir="/tmp", sandbox_id="x", guard=lambda: None)


OPERATIONS: dict[str, Callable[[TaskFiles], Awaitable[object]]] = {
    "stat": lambda files: files.stat("x"),
    "list": lambda files: files.list("x"),
    "glob": lambda files: files.glob("*"),
    "grep": lambda files: files.grep("x"),
    "read": lambda files: files.read("x"),
    "write": lambda files: files.write("x", b"1"),
    "edit": lambda files: files.edit("x", "a", "b"),
    "replace": lambda files: files.replace("a", "b"),
}
REPLIES = (
    "{}",
    '{"items":5}',
    '{"items":[{}]}\\n{}',
    '{"items":[5]}\\n{"truncated":0,"unreadable":5}',
    '{"items":[{"path":"x","size":1e400}]}\\n{"truncated":0,"unreadable":[]}',
    '{"stat":5}',
    '{"stat":{"kind":[]}}',
    '{"size":"x"}',
    '{"size":1e400,"replacements":1e400}',
)


@pytest.mark.anyio
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("reply", REPLIES)
async def test_a_malformed_reply_is_a_file_error(operation: str, reply: str) -> None:
    files = files_by_agent(f"printf '{reply}\\n'; cat >/dev/null")
    try:
        await OPERATIONS[operation](files)
    except SandboxFileError as error:
        assert "malformed" in str(error) or "incomplete" in str(error)  # noqa: PT017 - some replies suit some operations


@pytest.mark.anyio
async def test_an_endless_reply_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base_files, "MAX_ITEMS", 1000)
    monkeypatch.setattr("corral.base.shellfiles.files.MAX_ITEMS", 1000)
    with pytest.raises(SandboxFileTooLargeError):
        await files_by_agent("""yes '{"items":[{}]}'""").list("x")
    with pytest.raises(SandboxFileTooLargeError):
        await files_by_agent("""yes '{"items":[{}]}'""").glob("x", limit=10)
    with pytest.raises(SandboxFileTooLargeError):
        await files_by_shell("""yes '81a4 1 1 1 1 1:1 1' | sed 's/$/\\x00a\\x00/' | tr '\\n' '\\000'""").list("x")
