"""Refused operations on files, as exceptions here and as messages on a wire."""

from __future__ import annotations

import errno
from typing import Any

from corral.inside.nolinks import LinkFoundError


class RefusedError(Exception):
    """An operation that is refused; `code` is a stable word, `errno` the kernel's number or 0."""

    def __init__(self, code: str, number: int, text: str, **details: Any) -> None:
        super().__init__(text)
        self.code = code
        self.errno = number
        self.details = details


def describe_refusal(error: BaseException) -> dict[str, Any] | None:
    """The message for a refusal: `{"error": code, "errno": number, "text": text, …}`; None for a defect."""
    if isinstance(error, LinkFoundError):
        return _message("link", errno.ELOOP, "a part of the path has become a link", {})
    if isinstance(error, RefusedError):
        return _message(error.code, error.errno, str(error), error.details)
    if isinstance(error, OSError):
        return _message("os", error.errno or errno.EIO, error.strerror or str(error), {})
    if isinstance(error, MemoryError):
        return _message("too_big", 0, "the sandbox has not enough memory for this operation", {})
    if isinstance(error, (ValueError, KeyError, TypeError, RecursionError)):
        return _message("invalid", 0, f"{type(error).__name__}: {error}"[:500], {})
    return None


def _message(code: str, number: int, text: str, details: dict[str, Any]) -> dict[str, Any]:
    shown = text.encode("utf-8", "replace").decode()[:1000]
    return {"error": code, "errno": number, "text": shown, **details}
