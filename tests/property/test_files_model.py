"""A machine that writes, moves and removes at random, on the fake and on a plain model, which must agree."""

import asyncio
import posixpath
from collections.abc import Awaitable
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from corral.backends.memory.files import MemoryFiles
from corral.backends.memory.tree import FileTree
from corral.errors import SandboxFileError

NAMES = st.sampled_from(["a", "b", "c", "new\nline", "-x", ".h", "bad\udcff"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map(lambda parts: "/w/" + "/".join(parts))
CONTENT = st.binary(max_size=20)

Model = dict[str, bytes | None]
"""Path → content; None is a folder."""


class Files(RuleBasedStateMachine):
    """Every operation is tried on both; a refusal must be a refusal on both."""

    def __init__(self) -> None:
        super().__init__()
        self.tree = FileTree(workdir="/w", limit_bytes=1 << 20)
        self.files = MemoryFiles(self.tree, workdir="/w", sandbox_id="x", guard=lambda: None)
        self.model: Model = {}

    def attempt(self, work: Awaitable[Any]) -> Any:
        async def run() -> Any:
            try:
                return await work
            except SandboxFileError as error:
                return error

        return asyncio.run(run())

    def parents(self, path: str) -> list[str]:
        parts = path.split("/")
        return ["/".join(parts[:count]) for count in range(3, len(parts))]

    def below(self, path: str) -> list[str]:
        return [other for other in self.model if other.startswith(f"{path}/")]

    def blocked(self, path: str) -> bool:
        return any(self.model.get(parent, None) is not None for parent in self.parents(path))

    def has_parent(self, path: str) -> bool:
        parent = posixpath.dirname(path)
        return parent == "/w" or (parent in self.model and self.model[parent] is None)

    @rule(path=PATHS, content=CONTENT, append=st.booleans(), exclusive=st.booleans())
    def write(self, path: str, content: bytes, append: bool, exclusive: bool) -> None:
        there = path in self.model
        refused = self.blocked(path) or (there and (exclusive or self.model[path] is None))
        outcome = self.attempt(self.files.write(path, content, append=append, exclusive=exclusive))
        assert isinstance(outcome, SandboxFileError) == refused, outcome
        if not self.blocked(path):
            for parent in self.parents(path):
                self.model[parent] = None
        if not refused:
            old = self.model.get(path) if append else None
            self.model[path] = (old or b"") + content

    @rule(path=PATHS, parents=st.booleans())
    def mkdir(self, path: str, parents: bool) -> None:
        is_file = self.model.get(path, None) is not None
        if parents:
            refused = self.blocked(path) or is_file
        else:
            refused = path in self.model or not self.has_parent(path)
        outcome = self.attempt(self.files.mkdir(path, parents=parents))
        assert isinstance(outcome, SandboxFileError) == refused, outcome
        if not refused:
            for folder in [*self.parents(path), path]:
                self.model[folder] = None

    @rule(path=PATHS, recursive=st.booleans())
    def remove(self, path: str, recursive: bool) -> None:
        refused = path not in self.model or (bool(self.below(path)) and not recursive)
        outcome = self.attempt(self.files.remove(path, recursive=recursive))
        assert isinstance(outcome, SandboxFileError) == refused, outcome
        if not refused:
            for gone in [path, *self.below(path)]:
                del self.model[gone]

    @rule(source=PATHS, goal=PATHS, overwrite=st.booleans())
    def move(self, source: str, goal: str, overwrite: bool) -> None:
        refused = source not in self.model or self.blocked(source) or self.blocked(goal) or not self.has_parent(goal)
        if not refused and source != goal:
            moved_file, there = self.model[source] is not None, goal in self.model
            target_file = there and self.model[goal] is not None
            refused = (
                goal.startswith(f"{source}/")
                or (there and (not overwrite or moved_file != target_file or bool(self.below(goal))))
            )  # fmt: skip
        elif not refused:
            refused = not overwrite
        outcome = self.attempt(self.files.move(source, goal, overwrite=overwrite))
        assert isinstance(outcome, SandboxFileError) == refused, outcome
        if not refused and source != goal:
            self.model.pop(goal, None)
            for path in [source, *self.below(source)]:
                self.model[goal + path[len(source) :]] = self.model.pop(path)

    @rule(path=PATHS, old=CONTENT.filter(bool), new=CONTENT)
    def edit(self, path: str, old: bytes, new: bytes) -> None:
        content = self.model.get(path)
        refused = content is None or content.count(old) != 1
        outcome = self.attempt(self.files.edit(path, old, new))
        assert isinstance(outcome, SandboxFileError) == refused, outcome
        if not refused and content is not None:
            self.model[path] = content.replace(old, new)

    @invariant()
    def both_have_the_same_files(self) -> None:
        found = self.attempt(self.files.glob("**", path="/w"))
        assert sorted(found.paths) == sorted(self.model)
        for file in found.files:
            assert (file.kind == "folder") == (self.model[file.path] is None)
            if file.kind == "file":
                assert self.attempt(self.files.read(file.path)) == self.model[file.path]

    @invariant()
    def bytes_are_counted(self) -> None:
        wanted = sum(len(content) for content in self.model.values() if content is not None)
        assert self.tree.used_bytes == wanted


TestFiles = Files.TestCase
TestFiles.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
