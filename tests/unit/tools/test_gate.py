"""The rules of file tools: what is asked for, what an approval covers, and what a search then shows."""

import asyncio
from typing import Any

import pytest

from corral import AsyncSandbox
from corral.backends.memory import MemoryBackend
from corral.results import GrepResult
from corral.tools import FileTools, OperationRules, Permissions, Rule
from corral.tools.files import GLOB_LIMIT, GREP_LIMIT


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


SECRET = Permissions(read=OperationRules("allow", (Rule("**/my.key", "deny"),)))


async def test_what_may_not_be_read_takes_no_part_of_a_limit() -> None:
    """Else how much of the rest is shown tells what is in it: a password in a few hundred searches."""
    async with AsyncSandbox(backend="memory") as box:
        await box.files.write("z.txt", "".join(f"x{number}\n" for number in range(GREP_LIMIT)))
        told = []
        for content in ("y\n", "x\n" * 2 * GREP_LIMIT):
            await box.files.write("my.key", content)
            tool = FileTools(box, permissions=SECRET)["grep"]
            told.append((await tool({"pattern": "x"}), await tool({"pattern": "x", "path": "my.key"})))
        assert told[0] == told[1]
        assert not any(found.result.truncated for found in told[1])
        assert "z.txt" in told[0][0]


async def test_what_may_not_be_found_takes_no_part_of_a_limit() -> None:
    rules = Permissions(glob=OperationRules("allow", (Rule("**/a/*", "deny"),)))
    async with AsyncSandbox(backend="memory") as box:
        await box.files.write("z.txt", "")
        before = str(await FileTools(box, permissions=rules)["glob"]({"pattern": "**/*.txt"}))
        for number in range(GLOB_LIMIT + 1):
            await box.files.write(f"a/{number}.txt", "")
        assert str(await FileTools(box, permissions=rules)["glob"]({"pattern": "**/*.txt"})) == before


@pytest.mark.parametrize("hashline", [False, True])
async def test_an_edit_needs_leave_to_read(hashline: bool) -> None:
    """Whether a text was there to be replaced tells what is in a file, letter by letter."""
    async with AsyncSandbox(backend="memory") as box:
        await box.files.write("my.key", "secret\n")
        tools = FileTools(box, permissions=SECRET, hashline=hashline)
        told = [
            await tools["edit_file"]({"path": "my.key", "old_string": guess, "new_string": "x"})
            if not hashline
            else await tools["hashline_edit"](
                {"path": "my.key", "start_line": 1, "start_hash": guess, "new_content": "x"}
            )
            for guess in ("s", "z")
        ]
        assert [text.ok for text in told] == [False, False]
        assert told[0] == told[1]
        nothing = Permissions(read=OperationRules("deny"))
        assert not {"edit_file", "hashline_edit"} & set(FileTools(box, permissions=nothing, hashline=hashline).names)


async def test_question_names_the_target_of_a_link_and_that_target_is_written() -> None:
    asked: list[str] = []
    async with AsyncSandbox(backend="memory") as box:
        await box.files.write("plain.txt", "mine")
        await box.files.write("other.txt", "other")
        await box.files.symlink("link.txt", "plain.txt")

        async def swap(operation: str, path: str, note: str) -> bool:
            asked.append(path)
            await box.files.remove("plain.txt")
            await box.files.symlink("plain.txt", "other.txt")
            return True

        rules = Permissions(write=OperationRules("ask"))
        told = await FileTools(box, permissions=rules, on_ask=swap)["write_file"]({"path": "link.txt", "content": "x"})
        assert asked == ["/home/daytona/plain.txt"]
        assert "became a link to another file after permission was given" in told
        assert await box.files.read("other.txt") == b"other"


@pytest.mark.parametrize(
    "pattern",
    [
        *("closed/**", "./closed/**", "../daytona/closed/*", "b.txt", "*.txt", "{closed,shut}/b.txt", "**/b.txt"),
        *("closed/", "./closed//", "closed//b.txt", "closed/./b.txt", "open/../closed/*", "../daytona/closed/"),
        *("/home/daytona/closed/", "//home/daytona//closed/*", "/home/../home/daytona/closed/**", "**/closed/"),
    ],
)
@pytest.mark.parametrize("path", ["closed/b.txt", "open/../closed/b.txt", "/home/daytona/closed/b.txt", "door/b.txt"])
async def test_rules_hold_however_their_pattern_and_the_path_are_written(pattern: str, path: str) -> None:
    async with AsyncSandbox(backend="memory") as box:
        await prepare(box)
        await box.files.symlink("door", "closed")
        tools = FileTools(box, permissions=Permissions(read=OperationRules("allow", (Rule(pattern, "deny", "no"),))))
        assert await tools["read_file"]({"path": path}) == f"Error: read of {path} is not allowed: no"
        assert "closed/b.txt" not in await tools["grep"]({"pattern": "needle"})
        assert "needle" in await tools["read_file"]({"path": "open/my.key"})


async def test_rules_for_the_working_folder_hold_under_its_real_name() -> None:
    async with AsyncSandbox(backend="memory", workdir="/tmp/work") as box:
        await box.files.write("/tmp/real/closed/b.txt", "needle\n")
        await box.files.remove("/tmp/work", recursive=True)
        await box.files.symlink("/tmp/work", "/tmp/real")
        tools = FileTools(box, permissions=Permissions(read=OperationRules("allow", (Rule("closed/**", "deny"),))))
        for path in ("closed/b.txt", "/tmp/work/closed/b.txt", "/tmp/real/closed/b.txt"):
            assert "is not allowed" in await tools["read_file"]({"path": path}), path


async def test_a_folder_that_may_be_written_is_the_one_in_the_working_folder() -> None:
    async with AsyncSandbox(backend="memory") as box:
        tools = FileTools(box, permissions=Permissions(write=OperationRules("deny", (Rule("open/**", "allow"),))))
        assert (await tools["write_file"]({"path": "open/a.txt", "content": "a"})).ok
        for path in ("closed/open/a.txt", "/tmp/open/a.txt", "a.txt"):
            assert "is not allowed" in await tools["write_file"]({"path": path, "content": "a"})


@pytest.mark.parametrize("pattern", [".", "./", "./**", "../daytona", "../daytona/", "/home/daytona/"])
async def test_a_rule_for_the_working_folder_is_for_the_folder_itself(pattern: str) -> None:
    async with AsyncSandbox(backend="memory") as box:
        await prepare(box)
        tools = FileTools(box, permissions=Permissions(ls=OperationRules("allow", (Rule(pattern, "deny"),))))
        assert "is not allowed" in await tools["ls"]({"path": "."})
        assert "is not allowed" not in await tools["ls"]({"path": "/tmp"})


@pytest.mark.parametrize("pattern", ["open/", "./open/", "/home/daytona/open/"])
async def test_a_slash_at_the_end_of_a_rule_allows_that_folder_and_no_other(pattern: str) -> None:
    async with AsyncSandbox(backend="memory") as box:
        tools = FileTools(box, permissions=Permissions(write=OperationRules("deny", (Rule(pattern, "allow"),))))
        assert (await tools["write_file"]({"path": "open/in/a.txt", "content": "a"})).ok
        for path in ("opened/a.txt", "closed/open/a.txt", "/tmp/open/a.txt", "a.txt"):
            assert "is not allowed" in await tools["write_file"]({"path": path, "content": "a"}), path


async def test_a_search_below_a_link_is_judged_by_both_names() -> None:
    async with AsyncSandbox(backend="memory") as box:
        await prepare(box)
        await box.files.symlink("door", "open")
        rules = Permissions(read=OperationRules("allow", (Rule("door/a.txt", "deny"),)))
        tools = FileTools(box, permissions=rules)
        assert "a.txt" not in await tools["grep"]({"pattern": "needle", "path": "door"})
        assert "a.txt" in await tools["grep"]({"pattern": "needle", "path": "open"})


async def test_lines_are_edited_again_when_the_file_changes_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    async with AsyncSandbox(backend="memory") as box:
        await box.files.write("a.txt", "one\ntwo\n")
        tools = FileTools(box, hashline=True)
        tag = (await tools["read_file"]({"path": "a.txt"})).splitlines()[0].partition("|")[0].split(":")[1]
        edit, calls = box.files.edit, 0

        async def change_first(*arguments: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == 1:
                await box.files.write("a.txt", "one\nother\n")
            return await edit(*arguments, **options)

        monkeypatch.setattr(box.files, "edit", change_first)
        call = {"path": "a.txt", "start_line": 1, "start_hash": tag, "new_content": "1"}
        assert await tools["hashline_edit"](call) == "Replaced 1 line(s) at line 1 in a.txt"
        assert await box.files.read("a.txt") == b"1\nother\n"
