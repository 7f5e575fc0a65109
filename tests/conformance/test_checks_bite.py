"""Test the tests: each promise is broken on purpose, and its check fails. On the unchanged fake it passes."""

import asyncio
import os
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from corral.backends.memory import MemoryBackend
from corral.backends.memory.files import MemoryFiles
from corral.backends.memory.process import MemoryProcess
from corral.backends.memory.sandbox import Box, MemorySandbox
from corral.backends.memory.tree import FileTree
from corral.base import transfer
from corral.base.process import AsyncProcess, Capture, Ending
from corral.client.sandbox import AsyncSandbox
from corral.errors import EngineFaultError, SandboxFileNotFoundError
from corral.inside import glob
from corral.protocol import PathLike
from corral.results import EditResult, ExecResult
from corral.spec import Spec
from corral.testing import check
from corral.testing.check import run_check
from corral.testing.conformance import ALL_CHECKS

BY_NAME = {item.name: item for item in ALL_CHECKS}
Patch = pytest.MonkeyPatch
Break = Callable[[Patch], None]


def run(name: str, *, hang_seconds: float = check.HANG_SECONDS) -> str:
    """The verdict of one check on a fresh fake."""
    backend = MemoryBackend()

    async def work() -> str:
        verdict = await run_check(replace(BY_NAME[name], hang_seconds=hang_seconds), backend, cannot={})
        await backend.aclose()
        return verdict.outcome if verdict.outcome != "skipped" else f"skipped: {verdict.detail}"

    return asyncio.run(work())


# Each breaks one promise, and nothing else.


def raise_for_failures(patch: Patch) -> None:
    whole = AsyncSandbox._run

    async def broken(self: AsyncSandbox, *args: Any) -> ExecResult:
        result = await whole(self, *args)
        if result.exit_code:
            raise EngineFaultError(f"exit code {result.exit_code}")
        return result

    patch.setattr(AsyncSandbox, "_run", broken)


def forget_partial_output(patch: Patch) -> None:
    whole = AsyncProcess._result

    def broken(self: AsyncProcess, ending: Ending) -> ExecResult:
        result = whole(self, ending)
        return replace(result, stdout_bytes=b"", output_bytes=b"") if ending.reason == "timeout" else result

    patch.setattr(AsyncProcess, "_result", broken)


def call_a_timeout_1(patch: Patch) -> None:
    whole = AsyncProcess._result

    def broken(self: AsyncProcess, ending: Ending) -> ExecResult:
        return replace(whole(self, ending), exit_code=1) if ending.reason == "timeout" else whole(self, ending)

    patch.setattr(AsyncProcess, "_result", broken)


def wait_for_background_children(patch: Patch) -> None:
    def broken(self: MemoryProcess, work: Awaitable[int]) -> None:
        whole = self.finish

        def finish(ending: Any) -> None:
            task = asyncio.ensure_future(work)
            self._tasks.add(task)
            task.add_done_callback(lambda _: whole(ending))

        self.finish = finish  # type: ignore[method-assign]

    patch.setattr(MemoryProcess, "begin_child", broken)


def keep_all_output(patch: Patch) -> None:
    whole = Capture.__init__
    patch.setattr(Capture, "__init__", lambda self, limit: whole(self, 1 << 30))


def count_only_what_is_kept(patch: Patch) -> None:
    patch.setattr(Capture, "total", lambda self, stream: len(self.stream(stream)))


def ignore_cwd(patch: Patch) -> None:
    whole = MemorySandbox.spawn
    patch.setattr(MemorySandbox, "spawn", lambda self, request: whole(self, replace(request, cwd="/home/daytona")))


def pass_the_host_environment(patch: Patch) -> None:
    whole = MemorySandbox.base_env
    patch.setattr(MemorySandbox, "base_env", lambda self, user: {**os.environ, **whole(self, user)})


def drop_stdin(patch: Patch) -> None:
    whole = MemoryProcess.write
    patch.setattr(MemoryProcess, "write", lambda self, data: whole(self, b""))


def replace_what_is_gone(patch: Patch) -> None:
    patch.setattr(Box, "check", lambda self: None)


def forget_tokens(patch: Patch) -> None:
    whole = MemoryBackend.create

    async def broken(self: MemoryBackend, spec: Spec, **kwargs: Any) -> AsyncSandbox:
        return await whole(self, replace(spec, client_token=None), **kwargs)

    patch.setattr(MemoryBackend, "create", broken)


def leak_when_cancelled(patch: Patch) -> None:
    whole = MemoryBackend.create

    async def broken(self: MemoryBackend, spec: Spec, **kwargs: Any) -> AsyncSandbox:
        sandbox = await whole(self, spec, **kwargs)
        await asyncio.sleep(0)  # if it is cancelled here, the sandbox has no owner
        return sandbox

    patch.setattr(MemoryBackend, "create", broken)


def bind_to_one_loop(patch: Patch) -> None:
    loops: list[object] = []
    whole = MemorySandbox.spawn

    async def broken(self: MemorySandbox, request: Any) -> MemoryProcess:
        loops.append(asyncio.get_running_loop())
        assert loops[0] is loops[-1], "bound to another event loop"
        return await whole(self, request)

    patch.setattr(MemorySandbox, "spawn", broken)


def forget_deadlines(patch: Patch) -> None:
    patch.setattr(Box, "arm", lambda self, seconds: None)


def never_end(patch: Patch) -> None:
    patch.setattr(MemorySandbox, "release", lambda self: asyncio.sleep(0))


def write_in_place(patch: Patch) -> None:
    whole = MemoryFiles.write

    async def broken(self: MemoryFiles, path: PathLike, content: Any, **kwargs: Any) -> int:
        data = b"".join([piece async for piece in content]) if isinstance(content, AsyncIterable) else content
        await whole(self, path, data[: len(data) // 2], **kwargs)
        await asyncio.sleep(0)
        return await whole(self, path, data, **kwargs)

    patch.setattr(MemoryFiles, "write", broken)


def edit_as_text(patch: Patch) -> None:
    whole = MemoryFiles._edit

    async def broken(self: MemoryFiles, path: Any, old: bytes, new: bytes, **kwargs: Any) -> EditResult:
        content = (await self.read(path)).decode("utf-8", "replace").replace("\r\n", "\n")
        await self.write(path, content)
        return await whole(self, path, old, new, **kwargs)

    patch.setattr(MemoryFiles, "_edit", broken)


def swap_without_comparing(patch: Patch) -> None:
    whole = MemoryFiles._edit

    async def broken(self: MemoryFiles, path: Any, old: bytes, new: bytes, **kwargs: Any) -> EditResult:
        return await whole(self, path, old, new, **{**kwargs, "expected_sha256": None})

    patch.setattr(MemoryFiles, "_edit", broken)


def answer_none_for_missing(patch: Patch) -> None:
    whole = MemoryFiles.read_stream

    async def broken(self: MemoryFiles, path: PathLike, **kwargs: Any) -> AsyncIterator[bytes]:
        try:
            async for piece in whole(self, path, **kwargs):
                yield piece
        except SandboxFileNotFoundError:
            return

    patch.setattr(MemoryFiles, "read_stream", broken)


def let_every_link_out(patch: Patch) -> None:
    patch.setattr(transfer, "stays_inside", lambda *args: True)


def glob_across_folders(patch: Patch) -> None:
    whole = glob._translate
    patch.setattr(glob, "_translate", lambda segment, once: whole(segment, once).replace("[^/]", "."))


def pretend_to_have_a_terminal(patch: Patch) -> None:
    patch.setattr(MemorySandbox, "_refuse", lambda self, request: None)


def keep_after_success_too(patch: Patch) -> None:
    whole = AsyncSandbox.__aexit__

    async def broken(self: AsyncSandbox, kind: Any, error: Any, trace: Any) -> None:
        keep = self._spec.lifetime.keep_on_failure
        await whole(self, kind, error or (ValueError() if keep else None), trace)

    patch.setattr(AsyncSandbox, "__aexit__", broken)


def follow_every_link(patch: Patch) -> None:
    patch.setattr(FileTree, "has_link", lambda self, path: False)


BROKEN: list[tuple[str, str, Break]] = [
    ("1", "failure_is_a_result", raise_for_failures),
    ("2", "timeout_keeps_partial_output", forget_partial_output),
    ("2", "float_timeout_is_honoured", call_a_timeout_1),
    ("2", "long_output_is_cut_and_said", keep_all_output),
    ("3", "background_child_does_not_delay", wait_for_background_children),
    ("4", "long_output_is_cut_and_said", count_only_what_is_kept),
    ("6", "cwd_is_honoured", ignore_cwd),
    ("6", "env_is_honoured", pass_the_host_environment),
    ("6", "stdin_is_honoured", drop_stdin),
    ("7", "use_after_the_end_is_told", replace_what_is_gone),
    ("8", "token_makes_create_repeatable", forget_tokens),
    ("8", "token_holds_for_creates_at_once", forget_tokens),
    ("8", "create_is_cancel_safe", leak_when_cancelled),
    ("9", "sandbox_outlives_an_event_loop", bind_to_one_loop),
    ("10", "deadline_ends_the_sandbox", forget_deadlines),
    ("10", "closing_frees_everything", never_end),
    ("10", "sandbox_is_kept_after_a_failure", keep_after_success_too),
    ("files.write", "write_is_atomic", write_in_place),
    ("files.edit", "edit_preserves_every_other_byte", edit_as_text),
    ("files.edit", "edit_compares_before_it_swaps", swap_without_comparing),
    ("files.read", "unreadable_is_told_apart", answer_none_for_missing),
    ("files.download", "hostile_links_stay_inside", let_every_link_out),
    ("files.glob", "glob_matches", glob_across_folders),
    ("files.read", "link_in_place_of_a_file_is_refused", follow_every_link),
    ("files.list", "link_in_place_of_a_folder_is_refused", follow_every_link),
    ("CapabilityError", "missing_power_is_said", pretend_to_have_a_terminal),
]


@pytest.mark.parametrize("name", sorted({name for _, name, _ in BROKEN}))
def test_check_passes_when_the_promise_is_kept(name: str) -> None:
    assert run(name) == "passed"


@pytest.mark.parametrize(("promise", "name", "sabotage"), BROKEN, ids=[f"{p}-{n}-{b.__name__}" for p, n, b in BROKEN])
def test_check_fails_when_the_promise_is_broken(promise: str, name: str, sabotage: Break, monkeypatch: Patch) -> None:
    monkeypatch.setattr(check, "HANG_SECONDS", 6.0)  # a broken promise to end is waited for a short while only
    sabotage(monkeypatch)
    assert run(name, hang_seconds=4.0) == "failed", (
        f"rule {promise} was broken by {sabotage.__name__}, and {name} did not see it"
    )


def test_a_check_that_hangs_fails() -> None:
    async def forever(context: check.Context) -> None:
        await asyncio.sleep(1000)

    item = check.Check("forever", "1", "hangs", forever, hang_seconds=0.05)
    verdict = asyncio.run(run_check(item, MemoryBackend(), cannot={}))
    assert verdict.outcome == "failed"
    assert "TimeoutError" in verdict.detail


def test_ten_rules_have_a_check_that_bites() -> None:
    assert {str(number) for number in range(1, 11)} - {promise for promise, _, _ in BROKEN} == {
        "5"
    }  # which is broken below, where programs are real


@pytest.mark.needs_root
def test_payload_in_argv_is_seen(monkeypatch: Patch, tmp_path: Path) -> None:
    """Rule 5, on the embedded backend: a snippet that travels in argv dies of its size."""
    from corral.backends.embedded import EmbeddedBackend

    whole = AsyncSandbox.run_code

    async def broken(self: AsyncSandbox, code: str, language: str = "python", **kwargs: Any) -> Any:
        if len(code) < 1000:
            return await whole(self, code, language, **kwargs)
        return await self.exec(["python3", "-c", code])

    monkeypatch.setattr(AsyncSandbox, "run_code", broken)
    backend = EmbeddedBackend(tmp_path / "data")

    async def work() -> str:
        verdict = await run_check(BY_NAME["snippet_of_megabytes_runs"], backend, cannot={})
        await backend.aclose()
        return verdict.outcome

    assert asyncio.run(work()) == "failed"


@pytest.mark.needs_root
def test_surviving_daemon_is_seen(monkeypatch: Patch, tmp_path: Path) -> None:
    """Rule 2, on the embedded backend: a timeout that ends the direct child only."""
    from corral.backends.embedded import EmbeddedBackend
    from corral.backends.embedded.process import EmbeddedProcess

    monkeypatch.setattr(EmbeddedProcess, "end_tree", lambda self, reason: self._tell({"op": "signal", "number": 15}))
    monkeypatch.setattr(check, "HANG_SECONDS", 9.0)
    backend = EmbeddedBackend(tmp_path / "data")

    async def work() -> str:
        item = replace(BY_NAME["cancel_ends_the_whole_tree"], hang_seconds=15.0)
        verdict = await run_check(item, backend, cannot={})
        await backend.aclose()
        return verdict.outcome

    assert asyncio.run(work()) == "failed"
