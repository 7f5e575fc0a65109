"""The gate: checks the rules before a tool does anything, and again for everything that a search found.

The rules are checked for the path as the model wrote it and for the real path, with links followed, so that a link
can't bypass them. The real path is then used.
"""

from __future__ import annotations

import inspect
import posixpath
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from corral.base.files import AsyncFiles
from corral.client.sandbox import AsyncSandbox
from corral.errors import PolicyError, SandboxFileError
from corral.paths import inside
from corral.results import FileInfo
from corral.tools.concealment import is_below
from corral.tools.permission import Decision, Operation, Permissions, Rule, normal_path, real_path
from corral.tools.render import quote
from corral.tools.view import View

OnAsk = Callable[[str, str, str], bool | Awaitable[bool]]
"""Is given an operation, a path and the rule's note; returns True if it may be done."""

_STRICTNESS = {"allow": 0, "ask": 1, "deny": 2}


@dataclass(frozen=True, slots=True)
class Question:
    """A call that the rules deny, or say to ask about."""

    operation: Operation
    """The operation of the tool."""
    needed: Operation
    """The operation of the rule: an edit needs permission to read as well."""
    given: str
    """The path as the model wrote it, or the command."""
    named: str
    real: str
    decision: Decision

    @property
    def note(self) -> str:
        """The reason that the rule gives."""
        return self.decision.rule.note if self.decision.rule is not None else ""


@dataclass(frozen=True, slots=True)
class Entered:
    """The path of an allowed call, and which of its results may be shown."""

    path: str
    """The path to use: the real one, if there are rules."""
    named: str
    operation: Operation
    permissions: Permissions | None = None
    """The rules, for the working folder of this sandbox."""
    asked: tuple[Rule, ...] = ()
    """The rules that were asked about and approved."""

    def shows(self, path: str, *more: Operation) -> bool:
        """True if a path of the result may be shown, for the operation itself and for `more`, by both of its names.

        A path is left out if it is denied, or if a rule says to ask for it that was not asked about at the start. A
        rule that was approved then holds for everything that is found.
        """
        if self.permissions is None:
            return True
        names = {posixpath.normpath(path)}
        if is_below(path, self.path):
            names.add(posixpath.normpath(f"{self.named}/{path[len(self.path) :]}"))
        return all(self._shows(each, name) for each in (self.operation, *more) for name in names)

    def _shows(self, operation: Operation, name: str) -> bool:
        assert self.permissions is not None
        decision = self.permissions.decide(operation, name)
        if decision.action != "ask" or decision.rule is None:
            return decision.action != "deny"
        return operation == self.operation and decision.rule in self.asked

    async def shows_file(self, files: AsyncFiles, info: FileInfo) -> bool:
        """The same for an entry of a folder: a link is shown if its target may be."""
        if self.permissions is None or info.kind != "link" or not self.shows(info.path):
            return self.shows(info.path)
        try:
            return self.shows(await real_path(files, info.path, workdir="/"))
        except SandboxFileError:
            return False


class Gate:
    """The rules of a set of tools, and the callback for questions. Without rules everything is allowed.

    A subclass may ask in another way, and raise another error for a refusal.
    """

    def __init__(self, permissions: Permissions | None = None, on_ask: OnAsk | None = None) -> None:
        self.permissions = permissions
        self.on_ask = on_ask

    @property
    def follows(self) -> bool:
        """True if links in a path are followed before it is used."""
        return self.permissions is not None

    def could_allow(self, operation: Operation) -> bool:
        """False if nothing could ever be allowed, so that the tool is not shown. An edit needs to read as well."""
        needed: tuple[Operation, ...] = ("edit", "read") if operation == "edit" else (operation,)
        return self.permissions is None or not any(map(self.permissions.never, needed))

    async def enter(
        self, files: AsyncFiles, operation: Operation, path: str, *more: Operation, workdir: str
    ) -> Entered:
        """The path to use, if it may be used for an operation, and for `more` that this one needs.

        Raises:
            PolicyError: it is not allowed.
            SandboxFileError: the target of the path can't be determined.
        """
        named = normal_path(path, workdir=workdir)
        if not self.follows:
            return Entered(inside(path, workdir=workdir), named, operation)
        real = await real_path(files, path, workdir=workdir)
        if self.permissions is None:
            return Entered(real, named, operation)
        root = normal_path(".", workdir=workdir)
        real_root = await real_path(files, ".", workdir=workdir) if self.permissions.needs_workdir else root
        permissions = self.permissions.within(root, real_root)
        decided = [
            (each, permissions.decide(each, name))
            for each in (operation, *more)
            for name in dict.fromkeys((named, real))
        ]
        needed, strictest = max(decided, key=lambda each: _STRICTNESS[each[1].action])
        if strictest.action != "allow":  # one question is enough for one call
            await self.settle(Question(operation, needed, path, named, real, strictest))
            if real != await real_path(files, real, workdir=workdir):
                raise self.refuse(operation, path, "the path became a link to another file after permission was given")
        asked = [decision.rule for _, decision in decided if decision.action == "ask" and decision.rule is not None]
        return Entered(real, named, operation, permissions, tuple(asked))

    async def check_command(self, command: str) -> None:
        """Check the rules for commands. Raises: PolicyError."""
        if self.permissions is None:
            return
        decisions = [self.permissions.decide("execute", text) for text in (command.strip(), " ".join(command.split()))]
        strictest = max(decisions, key=lambda each: _STRICTNESS[each.action])
        if strictest.action != "allow":
            await self.settle(Question("execute", "execute", command, command, command, strictest))

    async def make_view(self, box: AsyncSandbox, *, workdir: str) -> View:
        """The view for a command: what it may write and see."""
        return View()

    async def settle(self, question: Question) -> None:
        """Ask, if the rule says so. Raises: PolicyError, unless it is approved."""
        if question.decision.action == "ask" and self.on_ask is not None:
            answer = self.on_ask(question.needed, question.real, question.note)
            if await answer if inspect.isawaitable(answer) else answer:
                return
        raise self.refuse(question.needed, question.given, question.note)

    def refuse(self, operation: Operation, given: str, why: str) -> Exception:
        """The error for an operation on a path, or a command, that is not allowed."""
        return PolicyError(f"{operation} of {quote(given)} is not allowed{f': {why}' if why else ''}", op=operation)
