"""Scripted replies to commands and snippets, and the calls that were made, for a test to check."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass

from corral.backends.memory.call import Call, Input
from corral.base.command import show_command
from corral.results import Denial

Wanted = str | re.Pattern[str]
"""The whole text of a command or snippet, or a pattern to find in it."""


@dataclass(frozen=True, slots=True)
class PastCall:
    """A past call. `text` is the shell text, the snippet, or the arguments as a shell would quote them."""

    argv: tuple[str, ...]
    text: str
    cwd: str
    env: Mapping[str, str]
    input: Input
    language: str | None = None

    @property
    def stdin(self) -> bytes:
        """The input so far."""
        return bytes(self.input.received)


@dataclass(slots=True)
class Reply:
    """A reply to a command or a snippet; `left` says how often it can still be used."""

    wanted: Wanted
    snippet: bool
    language: str | None
    stdout: bytes
    stderr: bytes
    exit_code: int
    seconds: float
    left: int | None
    denied: tuple[Denial, ...] = ()

    def matches(self, text: str, language: str | None) -> bool:
        """True if it is the reply to that command or snippet."""
        if self.left == 0 or self.snippet != (language is not None) or self.language not in (None, language):
            return False
        return text == self.wanted if isinstance(self.wanted, str) else self.wanted.search(text) is not None


class Script:
    """The replies; the first that matches and is not used up applies."""

    def __init__(self) -> None:
        self._rules: list[Reply] = []
        self._lock = threading.Lock()

    def add(self, reply: Reply) -> None:
        """Add a reply after the others."""
        with self._lock:
            self._rules.append(reply)

    def knows_code(self, text: str, language: str) -> bool:
        """True if a snippet has a reply."""
        return any(rule.matches(text, language) for rule in self._rules)

    async def play(self, call: Call) -> int | None:
        """Reply to a call; returns the exit code, or None if there is no reply for it."""
        text = show_command(call.argv) if call.code is None else call.code
        with self._lock:
            rule = next((rule for rule in self._rules if rule.matches(text, call.language)), None)
            if rule is None:
                return None
            if rule.left is not None:
                rule.left -= 1
        call.deny(rule.denied)
        if rule.seconds:
            await asyncio.sleep(rule.seconds)
        if rule.stdout:
            call.out(rule.stdout)
        if rule.stderr:
            call.err(rule.stderr)
        return rule.exit_code
