"""Runs INSIDE a sandbox, as part of `driver.py`: values as MIME bundles, as notebooks show them."""

from __future__ import annotations

import base64
import json

if False:  # for type checkers alone: nothing is imported that is not needed
    from typing import Any

EVENT_BYTES = 8 * 1024 * 1024
EVENT_VALUES = 90000
"""How many values the host accepts in an event, with some room for the rest of the event."""
PLAIN_CHARS = 1024 * 1024

REPR_METHODS = (
    ("_repr_html_", "text/html"),
    ("_repr_markdown_", "text/markdown"),
    ("_repr_svg_", "image/svg+xml"),
    ("_repr_png_", "image/png"),
    ("_repr_jpeg_", "image/jpeg"),
    ("_repr_pdf_", "application/pdf"),
    ("_repr_latex_", "text/latex"),
    ("_repr_json_", "application/json"),
    ("_repr_javascript_", "application/javascript"),
)


def take_repr(value: Any, mime: str) -> Any:
    """The value of a `_repr_*_` method as JSON can carry it."""
    if isinstance(value, (bytes, bytearray)):
        if mime.startswith("text/") or mime.endswith(("xml", "javascript")):
            return bytes(value).decode("utf-8", "replace")
        return base64.b64encode(bytes(value)).decode("ascii")
    return value


def plain(value: Any) -> str:
    """The repr of a value, or why it failed."""
    try:
        text = repr(value)
    except Exception as error:
        text = f"<{type(value).__name__}: its repr raised {type(error).__name__}>"
    if len(text) > PLAIN_CHARS:
        text = f"{text[:PLAIN_CHARS]} … [{len(text) - PLAIN_CHARS} characters left out]"
    return text


def take(found: Any, mime: str | None, data: dict[str, Any], metadata: dict[str, Any]) -> None:
    """Take over what a method returned: a value, or a value with metadata; without `mime`, a whole bundle."""
    extra: Any = None
    if isinstance(found, tuple) and len(found) == 2:
        found, extra = found
    if found is None:
        return
    if mime is not None:
        data[mime] = take_repr(found, mime)
        if extra:
            metadata[mime] = extra
        return
    for key, item in dict(found).items():
        data[str(key)] = take_repr(item, str(key))
    metadata.update(extra or {})


def describe(value: Any, charts: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """A value as a MIME bundle, and metadata. A representation that fails is left out."""
    data: dict[str, Any] = {}
    metadata: dict[str, Any] = {}
    # Mocks and proxies have every method: theirs mean nothing.
    if not isinstance(value, type) and not has(value, "_corral_no_object_has_this_"):
        if has(value, "_repr_mimebundle_"):
            try:
                take(value._repr_mimebundle_(include=None, exclude=None), None, data, metadata)
            except Exception:
                data.clear()
        for name, mime in REPR_METHODS:
            if mime not in data and has(value, name):
                try:
                    take(getattr(value, name)(), mime, data, metadata)
                except Exception:
                    continue
        data.update(charts.describe(value))
    if not isinstance(data.get("text/plain"), str):
        data["text/plain"] = plain(value)
    return data, metadata


def has(value: Any, name: str) -> bool:
    """True if a value has such a method. An attribute that raises is no method."""
    try:
        return callable(getattr(value, name, None))
    except Exception:
        return False


def fit(data: dict[str, Any], metadata: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Drop values that JSON can't carry, and the largest ones until the rest fits into one event."""
    sizes: dict[str, int] = {}
    for mime in list(data):
        try:
            text = json.dumps(data[mime])
            many = not isinstance(data[mime], str) and sum(map(text.count, "[{,")) > EVENT_VALUES
            sizes[mime] = EVENT_BYTES + 1 if many else len(text)
        except (TypeError, ValueError, RecursionError):
            del data[mime]
    while sum(sizes.values()) > EVENT_BYTES:
        mime = max(sizes, key=lambda key: sizes[key])
        sizes.pop(mime)
        del data[mime]
        data["text/plain"] = "{}\n[{} left out: too large]".format(str(data.get("text/plain", ""))[:10000], mime)
        sizes["text/plain"] = len(data["text/plain"])
    try:
        json.dumps(metadata)
    except (TypeError, ValueError, RecursionError):
        metadata = {}
    return data, metadata
