"""What all tools have: a name, a schema, and one way from a model's arguments to a text.

A model's mistake becomes a text, so that the model can correct it. The sandbox's failure stays an error for the program
around the model: a text would make the model believe that its command had failed.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from corral.client.sandbox import AsyncSandbox
from corral.concurrency.portal import get_portal
from corral.errors import (
    ExecError,
    PolicyError,
    SandboxFileError,
    SandboxFileInterruptedError,
    UnknownLanguageError,
)
from corral.tools.permission import Operation
from corral.tools.render import DEFAULT_MAX_CHARS, LEAST_MAX_CHARS, ToolText, render_error
from corral.tools.schema import ArgumentsError, Parameter, make_schema, parse_arguments

MENDABLE = (PolicyError, SandboxFileError, ExecError, UnknownLanguageError)
"""Errors that a model can do something about. All others are raised."""


class Opener(Protocol):
    """Gives a sandbox for a context: `corral.Environment`, or your own implementation."""

    def open(self, context: Any = None) -> AbstractAsyncContextManager[AsyncSandbox]:
        """The sandbox, for as long as the block lasts."""


Source = Opener | AsyncSandbox
"""Where a tool gets its sandbox from: an environment, or a sandbox that its caller keeps alive."""


def open_source(source: Source, context: Any) -> AbstractAsyncContextManager[AsyncSandbox]:
    """The sandbox of a source, for as long as the block lasts."""
    return contextlib.nullcontext(source) if isinstance(source, AsyncSandbox) else source.open(context)


class Tool(ABC):
    """A tool: `await tool.call({"code": "print(1)"})` gives the text for the model.

    `schema` is the JSON schema of its arguments; `definition()` has everything that most model APIs ask for.
    """

    def __init__(
        self,
        environment: Source,
        *,
        name: str,
        description: str,
        parameters: Sequence[Parameter],
        max_chars: int = DEFAULT_MAX_CHARS,
    ) -> None:
        if not isinstance(environment, AsyncSandbox) and not hasattr(environment, "open"):
            raise TypeError(
                f"environment must be an Environment or a sandbox of the async API, not {type(environment).__name__}"
            )
        if max_chars < LEAST_MAX_CHARS:
            raise ValueError(f"max_chars={max_chars} is too small; use at least {LEAST_MAX_CHARS}")
        self.environment = environment
        self.name = name
        self.description = description
        self.parameters = tuple(parameters)
        self.max_chars = max_chars

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of the arguments."""
        return make_schema(self.parameters)

    def definition(self) -> dict[str, Any]:
        """Name, description and parameters, as model APIs expect them."""
        return {"name": self.name, "description": self.description, "parameters": self.schema}

    async def call(self, arguments: Mapping[str, Any] | str | None = None, context: Any = None) -> ToolText:
        """Run the tool with a model's arguments, as an object or as JSON; gives the text for the model.

        Raises:
            SandboxGoneError: the sandbox has ended. The next call gets a new one from an environment.
            CorralError: another failure that is not the model's fault, such as a backend that can't create a sandbox.
        """
        try:
            values = self.judge(parse_arguments(self.parameters, arguments))
            async with open_source(self.environment, context) as box:
                try:
                    return await self.run(box, values)
                except SandboxFileInterruptedError as error:
                    # Something inside has killed the file agent, which is started again: worth another try.
                    return render_error(f"{error}; try again", code=error.code)
                except MENDABLE as error:
                    return render_error(str(error), code=error.code)
        except ArgumentsError as error:
            return render_error(
                f"{error}. Call {self.name} again with arguments that match its schema.", code="arguments"
            )
        except (PolicyError, UnknownLanguageError) as error:
            return render_error(str(error), code=error.code)

    async def __call__(self, arguments: Mapping[str, Any] | str | None = None, context: Any = None) -> ToolText:
        """The same as `call`."""
        return await self.call(arguments, context)

    def call_sync(self, arguments: Mapping[str, Any] | str | None = None, context: Any = None) -> ToolText:
        """The same as `call`, for code that is not async."""
        return get_portal().run(self.call(arguments, context))

    def judge(self, values: dict[str, Any]) -> dict[str, Any]:
        """The values, checked before a sandbox is opened. Raises: ArgumentsError, PolicyError, UnknownLanguageError."""
        return values

    @abstractmethod
    async def run(self, box: AsyncSandbox, values: Mapping[str, Any]) -> ToolText:
        """Do the work of the tool, with checked values."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Row(Generic[T]):
    """One tool of a set: its description for the model, and the function that does its work.

    `act` is given what the set prepares from a sandbox, the checked values, and the maximum length of its text.
    """

    operation: Operation
    description: str
    act: Callable[[T, Mapping[str, Any], int], Awaitable[ToolText]]
    parameters: tuple[Parameter, ...]


class SetTool(Tool, Generic[T]):
    """One of the tools of a set."""

    def __init__(
        self, environment: Source, *, name: str, row: Row[T], max_chars: int, prepare: Callable[[AsyncSandbox], T]
    ) -> None:
        super().__init__(
            environment, name=name, description=row.description, parameters=row.parameters, max_chars=max_chars
        )
        self._act = row.act
        self._prepare = prepare

    async def run(self, box: AsyncSandbox, values: Mapping[str, Any]) -> ToolText:
        """Do the work of the tool, with checked values."""
        return await self._act(self._prepare(box), values, self.max_chars)


class ToolSet(Generic[T]):
    """Tools on one environment: iterate over them, or take one by its name."""

    def __init__(
        self,
        environment: Source,
        rows: Mapping[str, Row[T]],
        *,
        max_chars: int,
        prepare: Callable[[AsyncSandbox], T],
    ) -> None:
        self._tools = {
            name: SetTool(environment, name=name, row=row, max_chars=max_chars, prepare=prepare)
            for name, row in rows.items()
        }

    def __iter__(self) -> Iterator[SetTool[T]]:
        return iter(self._tools.values())

    def __len__(self) -> int:
        return len(self._tools)

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    def __getitem__(self, name: str) -> SetTool[T]:
        return self._tools[name]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tools."""
        return tuple(self._tools)


def timeout_parameter(default: float, most: float) -> Parameter:
    """The timeout parameter of tools that run programs."""
    return Parameter(
        "timeout_seconds",
        "number",
        f"timeout in seconds (default {default:g}, at most {most:g})",
        least=0.001,
        most=most,
    )
