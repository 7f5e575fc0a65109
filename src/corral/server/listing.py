"""Lists of sandboxes: filters, order, and pages that stay stable while sandboxes are created and deleted."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar

import msgspec

from corral.server.faults import bad_request
from corral.server.store.rows import Row, Sandbox
from corral.server.wire.base import seconds_of
from corral.server.wire.control import Filters, PageQuery, SandboxesQuery

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


def page_of(rows: Iterable[Sandbox], query: SandboxesQuery) -> tuple[list[Sandbox], str | None]:
    """The page that a query asks for, and the cursor of the next. Raises: Fault 400."""
    return cut_page(filter_rows(rows, query), query, value_of=_ORDERS[query.sort])


class ByCursor(Protocol):
    """The query of a list by pages."""

    cursor: str | None
    limit: int

    @property
    def sort(self) -> str:
        """What it is sorted by."""

    @property
    def order(self) -> str:
        """`asc` or `desc`."""


R = TypeVar("R", bound=Row)


def cut_page(rows: Iterable[R], query: ByCursor, *, value_of: Callable[[R], Any]) -> tuple[list[R], str | None]:
    """The page of sorted rows that a query asks for, and the cursor of the next. Raises: Fault 400."""
    down = query.order == "desc"

    def place(row: R) -> tuple[Any, str]:
        return value_of(row), row.id

    found = sorted(rows, key=place, reverse=down)
    if query.cursor is not None:
        after = _read_cursor(query)
        found = [row for row in found if (place(row) < after if down else place(row) > after)]
    page = found[: query.limit]
    if len(found) <= len(page):
        return page, None
    last = page[-1]
    cursor = Cursor(sort=query.sort, order=query.order, value=value_of(last), id=last.id)
    return page, base64.urlsafe_b64encode(msgspec.json.encode(cursor)).decode().rstrip("=")


def numbered_page_of(rows: Iterable[Sandbox], query: PageQuery) -> tuple[list[Sandbox], int]:
    """The page with that number, and how many sandboxes there are on all pages. Raises: Fault 400."""
    found = [row for row in filter_rows(rows, query) if not query.regions or row.target in query.regions]
    value_of = _ORDERS[query.sort]
    found.sort(key=lambda row: (value_of(row), row.id), reverse=query.order == "desc")
    begin = (query.page - 1) * query.limit
    return found[begin : begin + query.limit], len(found)


def _read_cursor(query: ByCursor) -> tuple[Any, str]:
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
    choices = (("state", query.states), ("snapshot", query.snapshots), ("target", query.region_ids))
    ranges = (
        ("cpu", query.min_cpu, query.max_cpu),
        ("memory", query.min_memory, query.max_memory),
        ("disk", query.min_disk, query.max_disk),
        ("created_at", seconds_of(query.created_at_after), seconds_of(query.created_at_before)),
        ("active_at", seconds_of(query.last_event_after), seconds_of(query.last_event_before)),
        ("destroy_at", seconds_of(query.auto_destroy_at_after), seconds_of(query.auto_destroy_at_before)),
    )

    def fits(row: Sandbox) -> bool:
        return (
            labels.items() <= row.labels.items()
            and (not query.id or row.id.startswith(query.id.lower()))
            and (not query.name or row.name.lower().startswith(query.name.lower()))
            and all(not wanted or getattr(row, name) in wanted for name, wanted in choices)
            and (not query.sandbox_classes or "container" in query.sandbox_classes)
            and query.is_public in (None, row.public)
            and query.is_recoverable in (None, row.is_recoverable)
            and _is_between(0, query.min_gpu, query.max_gpu)
            and all(_is_between(getattr(row, name), least, most) for name, least, most in ranges)
        )

    return [row for row in rows if fits(row)]


def _is_between(value: float | None, least: float | None, most: float | None) -> bool:
    """Whether a value is within the bounds that are given; one that is not known is within none."""
    if value is None:
        return least is None and most is None
    return (least is None or value >= least) and (most is None or value <= most)
