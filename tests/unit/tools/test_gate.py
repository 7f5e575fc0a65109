"""The rules of file tools: what is asked about, what that is good for, and what a search then shows."""

import asyncio

import pytest

from corral import AsyncSandbox
from corral.backends.memory import MemoryBackend
from corral.results import GrepResult
from corral.tools import FileTools, OperationRules, Permissions, Rule


async def prepare(box: AsyncSandbox) -> None:
    for path in ("open/a.txt", "open/my.key", "closed/b.txt"):
        await box.files.write(path, "needle\n")


@pytest.mark.parametrize("action", ["deny", "ask"])
async def test_grep_shows_nothing_of_what_may_only_be_read_after_asking(action: str) -> None:
    async with AsyncSandbox(backend="memory") as box:
        await prepare(box)
        rules = Permissions(read=OperationRules("allow", (Rule("**/*.key", action),)))  # type: ignore[arg-type]
        found = await FileTools(box, permissions=rules, on_ask=lambda *_: True)["grep"]({"pattern": "needle"})
        assert ".key" not in found
        assert "open/a.txt" in found
        assert "closed/b.txt" in found


async def test_a_rule_that_was_asked_about_holds_for_all_that_the_search_finds() -> None:
    asked: list[tuple[str, str]] = []

    async def answer(operation: str, path: str, note: str) -> bool:
        asked.append((operation, path))
        return True

    async with AsyncSandbox(backend="memory") as box:
        await prepare(box)
        rules = Permissions(ls=OperationRules("allow", (Rule("/home/daytona/open/**", "ask"),)))
        tools = FileTools(box, permissions=rules, on_ask=answer)
        assert "a.txt" in await tools["ls"]({"path": "open"})
        assert asked == [("ls", "/home/daytona/open")]
        assert "open" not in await tools["ls"]({"path": "."})  # it was not asked about here


@pytest.mark.parametrize(
    "pattern", ["/home/daytona/op?n/a.txt", "/home/daytona/[o]pen/a.txt", "/home/daytona/open/a.*"]
)
async def test_an_absolute_pattern_says_itself_where_to_look(pattern: str) -> None:
    async with AsyncSandbox(backend="memory") as box:
        await prepare(box)
        assert "/home/daytona/open/a.txt" in await FileTools(box)["glob"]({"pattern": pattern})


async def test_a_search_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = MemoryBackend()
    async with AsyncSandbox(backend=backend) as box:

        async def search(*arguments: object, **options: object) -> GrepResult:
            await asyncio.sleep(3600)
            raise AssertionError("slept for an hour")

        monkeypatch.setattr("corral.tools.reading.SEARCH_SECONDS", 0.05)
        monkeypatch.setattr(type(box.files), "grep", search)
        answer = await FileTools(box)["grep"]({"pattern": "(a+)+$"})
        assert not answer.ok
        assert answer.startswith("Error: the search took longer than 0.05 seconds")
