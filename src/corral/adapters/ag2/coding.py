"""The types of AG2's classic code execution, and our reader of code blocks.

With ag2 up to 0.14 (the package `autogen`) they are its own classes, which are Pydantic models. Without it they are
models with the same fields, or dataclasses where Pydantic is missing too, so the executors work without AG2.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from corral.results import CodeResult as CoreResult
from corral.tools.fences import find_blocks

_BLOCKS = "_blocks"


@dataclass(frozen=True, slots=True)
class BlockResult:
    """The result of one block, with everything that AG2's result leaves out."""

    language: str
    exit_code: int
    output: str
    result: CoreResult | None = None
    """None if the block was not run: an unknown language, or a failure of the sandbox."""
    error: Exception | None = None

    @property
    def ok(self) -> bool:
        """True if it ran and exited with 0."""
        return self.exit_code == 0

    @property
    def timed_out(self) -> bool:
        """True if it timed out; `output` has what it had printed."""
        return self.result is not None and self.result.timed_out


def _find_classes() -> tuple[type[Any], type[Any]]:
    with contextlib.suppress(ImportError):
        base = importlib.import_module("autogen.coding.base")
        return base.CodeBlock, base.CodeResult
    with contextlib.suppress(ImportError):
        pydantic = importlib.import_module("pydantic")
        block = pydantic.create_model("CodeBlock", __module__=__name__, code=(str, ...), language=(str, ...))
        result = pydantic.create_model("CodeResult", __module__=__name__, exit_code=(int, ...), output=(str, ...))
        block.__doc__, result.__doc__ = _PlainBlock.__doc__, _PlainResult.__doc__
        return block, result
    return _PlainBlock, _PlainResult


@dataclass
class _PlainBlock:
    """A piece of code and the language it is written in."""

    code: str
    language: str


@dataclass
class _PlainResult:
    """The exit code and the output."""

    exit_code: int
    output: str


if TYPE_CHECKING:
    from dataclasses import dataclass as _model

    CodeBlock = _PlainBlock
    CodeResult = _PlainResult
else:
    CodeBlock, CodeResult = _find_classes()

    def _model(kind):
        """Pydantic reads the fields of a subclass by itself; a dataclass needs the decorator."""
        return dataclass(kind) if CodeResult is _PlainResult else kind


@_model
class SandboxCodeResult(CodeResult):
    """AG2's result, with the sandbox's id and the results of the blocks."""

    sandbox_id: str | None = None
    """The sandbox in which the code ran."""

    @property
    def blocks(self) -> tuple[BlockResult, ...]:
        """The result of each block that was run."""
        found: tuple[BlockResult, ...] = self.__dict__.get(_BLOCKS, ())
        return found


class DaytonaCodeResult(SandboxCodeResult):
    """The result of `DaytonaCodeExecutor`; `blocks` is ours."""


def with_blocks(result: SandboxCodeResult, blocks: Sequence[BlockResult]) -> SandboxCodeResult:
    """Attach the blocks, not as a field: AG2 prints, stores and compares only fields."""
    result.__dict__[_BLOCKS] = tuple(blocks)
    return result


class MarkdownCodeExtractor:
    """Finds the code blocks of a message, as `corral.tools.fences` defines them."""

    def extract_code_blocks(self, message: str | Sequence[Mapping[str, Any]] | None) -> list[Any]:
        """`CodeBlock`s, in order. Raises: TypeError for anything else."""
        return [CodeBlock(code=block.code, language=block.language) for block in find_blocks(text_of(message))]


def text_of(message: str | Sequence[Mapping[str, Any]] | None) -> str:
    """The text of a message; of one in parts, the text parts, without images and calls. Raises: TypeError."""
    if message is None:
        return ""
    if isinstance(message, str):
        return message
    if isinstance(message, bytes) or not isinstance(message, Sequence):
        raise TypeError(f"a message must be a string, a list of parts, or None, not {type(message).__name__}")
    texts = []
    for part in message:
        if not isinstance(part, Mapping) or "type" not in part:
            raise TypeError(f"a part of a message must be a dict with a 'type', not {type(part).__name__}")
        if part["type"] in ("text", "input_text"):
            texts.append(str(part.get("text") or ""))
    return "\n".join(texts)
