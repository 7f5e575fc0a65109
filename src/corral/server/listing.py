"""Lists of sandboxes: filters, order, and pages that stay stable while sandboxes are created and deleted."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

import msgspec

from corral.server.faults import bad_request
from corral.server.store.rows import Sandbox
from corral.server.wire.base import seconds_of
from corral.server.wire.control import Filters, ListQuery, PageQuery

_ORDERS: dict[str, Callable[[Sandbox], Any]] = {
    "id": lambda row: row.id,
    "name": lambda row: row.name,
    "cpu": lambda row: row.cpu,
    "memoryGib": lambda row: row.memory,
    "diskGib": lambda row: row.disk,
    "state": lambda row: row.state,
    "snapshot": lambda row: row.snapshot or "",
    "region": lambda row: row.target,
    "createdAt": lambda row: row.created_at,
    "updatedAt": lambda row: row.updated_at,
    "lastActivityAt": lambda row: row.active_at,
}
"""What a list is sorted by; each query says which of them it takes."""


class Cursor(msgspec.Struct, array_like=True):
    """Where a page ended: its order, and its last sandbox."""

    sort: str
    order: str
    value: str | int | float
    id: str


def page_of(rows: Iterable[Sandbox], query: ListQuery) -> tuple[list[Sandbox], str | None]:
    """The page that a query asks for, and the cursor of the next. Raises: Fault 400."""
    value_of = _ORDERS[query.sort]
    down = query.order == "desc"

    def place(row: Sandbox) -> tuple[Any, str]:
        return value_of(row), row.id

    found = sorted(filter_rows(rows, query), key=place, reverse=down)
    if query.cursor is not None:
        after = _read_cursor(query)
        found = [row for row in found if (place(row) < after if down else place(row) > after)]
    page = found[: query.limit]
    if len(found) <= len(page):
        return page, None
    last = page[-1]
    return page, _write_cursor(Cursor(sort=query.sort, order=query.order, value=value_of(last), id=last.id))


def numbered_page_of(rows: Iterable[Sandbox], query: PageQuery) -> tuple[list[Sandbox], int]:
    """The page with that number, and how many sandboxes there are on all pages. Raises: Fault 400."""
    found = [row for row in filter_rows(rows, query) if not query.regions or row.target in query.regions]
    value_of = _ORDERS[query.sort]
    found.sort(key=lambda row: (value_of(row), row.id), reverse=query.order == "desc")
    begin = (query.page - 1) * query.limit
    return found[begin : begin + query.limit], len(found)


def _write_cursor(cursor: Cursor) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(cursor)).decode().rstrip("=")


def _read_cursor(query: ListQuery) -> tuple[Any, str]:
    text = query.cursor or ""
    try:
        packed = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        cursor = msgspec.json.decode(packed, type=Cursor)
    except (binascii.Error, msgspec.DecodeError, UnicodeError, ValueError):
        raise bad_request("cursor: not valid") from None
    if (cursor.sort, cursor.order) != (query.sort, query.order) or isinstance(cursor.value, str) != (
        query.sort == "name"
    ):
        raise bad_request("cursor: belongs to a list with another sort or order")
    return cursor.value, cursor.id


def read_labels(text: str | None) -> dict[str, str]:
    """A filter by labels: a JSON object in the query. Raises: Fault 400."""
    if not text:
        return {}
    try:
        return msgspec.json.decode(text, type=dict[str, str] | None) or {}  # older clients write null for none
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise bad_request("labels: must be a JSON object of strings") from None


def filter_rows(rows: Iterable[Sandbox], query: Filters) -> list[Sandbox]:
    """The rows that match the filters of a query. Raises: Fault 400."""
    labels = read_labels(query.labels)
    tests: list[Callable[[Sandbox], bool]] = []
    if labels:
        tests.append(lambda row: all(row.labels.get(key) == value for key, value in labels.items()))
    if query.id:
        tests.append(lambda row: row.id.startswith((query.id or "").lower()))
    if query.name:
        tests.append(lambda row: row.name.lower().startswith((query.name or "").lower()))
    tests += [_among(attribute, wanted) for attribute, wanted in (
        ("state", query.states), ("snapshot", query.snapshots), ("target", query.region_ids),
    ) if wanted]  # fmt: skip
    if query.sandbox_classes:
        tests.append(lambda row: "container" in query.sandbox_classes)
    if query.is_public is not None:
        tests.append(lambda row: row.public == query.is_public)
    if query.is_recoverable is not None:
        tests.append(lambda row: (row.state == "error" and row.engine_id is not None) == query.is_recoverable)
    tests += _between(query)
    return [row for row in rows if all(test(row) for test in tests)]


def _among(attribute: str, wanted: list[str]) -> Callable[[Sandbox], bool]:
    return lambda row: getattr(row, attribute) in wanted


def _between(query: Filters) -> list[Callable[[Sandbox], bool]]:
    ranges: list[tuple[Callable[[Sandbox], float | None], float | None, float | None]] = [
        (lambda row: row.cpu, query.min_cpu, query.max_cpu),
        (lambda row: row.memory, query.min_memory, query.max_memory),
        (lambda row: row.disk, query.min_disk, query.max_disk),
        (lambda row: 0, query.min_gpu, query.max_gpu),
        (lambda row: row.created_at, _seconds(query.created_at_after), _seconds(query.created_at_before)),
        (lambda row: row.active_at, _seconds(query.last_event_after), _seconds(query.last_event_before)),
        (lambda row: row.destroy_at, _seconds(query.auto_destroy_at_after), _seconds(query.auto_destroy_at_before)),
    ]
    return [_inside(*each) for each in ranges if each[1] is not None or each[2] is not None]


def _inside(
    value_of: Callable[[Sandbox], float | None], least: float | None, most: float | None
) -> Callable[[Sandbox], bool]:
    def test(row: Sandbox) -> bool:
        value = value_of(row)
        return value is not None and (least is None or value >= least) and (most is None or value <= most)

    return test


def _seconds(moment: datetime | None) -> float | None:
    return None if moment is None else seconds_of(moment)
