"""Events out of Markdown as people and models write it: lists, tables, headings with lines below them.

The text is hostile: it is bounded, and every pattern here has bounded repeats, so that no text is slow to read.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

MAX_CHARACTERS = 256 * 1024
"""Text beyond it is not read."""
MAX_EVENTS = 1000
_MAX_LINES = 5000
_MAX_LINE_CHARACTERS = 4000
_MAX_BLOCK_LINES = 40

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH = (
    "(jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?|"
    "nov(?:ember)?|dec(?:ember)?)"
)
_ISO = re.compile(r"(?<!\d)(\d{4})[-/.](\d{1,2})[-/.](\d{1,2})(?!\d)")
_MONTH_FIRST = re.compile(
    rf"\b{_MONTH}\b\.? {{0,3}}(\d{{1,2}})(?:st|nd|rd|th)?\b(?:[^\w|]{{1,3}}(\d{{4}})\b)?", re.IGNORECASE
)
_MONTH_FIRST_RANGE = re.compile(
    rf"\b{_MONTH}\b\.? {{0,3}}(\d{{1,2}}) ?[-–—] ?\d{{1,2}},? {{1,3}}(\d{{4}})\b", re.IGNORECASE
)
_DAY_FIRST = re.compile(
    rf"(?<!\d)(\d{{1,2}})(?:st|nd|rd|th)?\.? {{0,3}}(?:of )?{_MONTH}\b\.?(?:,? {{1,3}}(\d{{4}})\b)?", re.IGNORECASE
)
_AMERICAN = re.compile(r"(?<![\d/])(\d{1,2})/(\d{1,2})(?:/(\d{4}|\d{2}))?(?![\d/])")

_URL = re.compile(r"https?://[^\s<>()\[\]\"'|`]{1,2000}", re.IGNORECASE)
_LABEL = re.compile(r"[a-z0-9\u00a1-\uffff](?:[a-z0-9\u00a1-\uffff-]{0,61}[a-z0-9\u00a1-\uffff])?")
_LINK = re.compile(r"\[([^\[\]]{1,500})\]\(\s{0,3}<?([^()\s<>]{1,2000})")
_SIGNS = re.compile(r"[*_`#\[\]]")
_BOLD = re.compile(r"(?:\*\*|__)([^*_]{1,500})(?:\*\*|__)")
_DECORATION = re.compile("[\u2190-\u2bff\U0001f000-\U0001faff\ufe0f\u200d> ]{0,20}")
"""Arrows, symbols and emoji at the beginning of a line."""
_HEADING = re.compile(r"(#{1,6})\s{1,5}(\S.*)")
_ITEM = re.compile(r"([ \t]{0,20})(?:[-*+•]|\d{1,3}[.)])[ \t]{1,5}(\S.*)")
_FIELD = re.compile(
    r"[^\w|]{0,8}(?:\*\*|__)?([A-Za-z][A-Za-z /]{0,20}?)(?:\*\*|__)?\s{0,2}:(?!//)(?:\*\*|__)?\s{0,3}(.*)"
)
_RULE = re.compile(r"\|?[ \t:|-]{3,400}")
_DATE_WORDS = {"date", "dates", "when", "day", "starts", "start", "start date", "date and time", "date/time", "time"}
_URL_WORDS = {
    "url", "link", "links", "register", "registration", "rsvp", "website", "web", "more info", "info", "source",
    "event link", "tickets",
}  # fmt: skip
_TITLE_WORDS = {"title", "event", "name", "event name", "what"}
_OTHER_WORDS = {
    "where", "location", "venue", "place", "price", "cost", "host", "hosted by", "organizer", "organiser",
    "description", "details", "about", "type", "category", "format", "why", "who", "notes", "speakers", "tags", "city",
    "address",
}  # fmt: skip
_LABELS = _DATE_WORDS | _URL_WORDS | _TITLE_WORDS | _OTHER_WORDS


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundEvent:
    """One event, as far as it could be read. Empty fields were missing."""

    title: str = ""
    date: datetime.date | None = None
    url: str = ""
    url_is_good: bool = False
    text: str = field(default="", repr=False)

    @property
    def missing(self) -> tuple[str, ...]:
        """Which of title, date and url are missing."""
        there = {"title": self.title, "date": self.date, "url": self.url}
        return tuple(name for name, value in there.items() if not value)


@dataclass(slots=True)
class _Block:
    """Lines that belong together: the one that begins it, and those below."""

    kind: str
    first: str
    level: int = 0
    lines: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "\n".join([self.first, *self.lines])


def find_events(text: str, *, year: int) -> list[FoundEvent]:
    """The events of a Markdown text. `year` is used for dates without a year."""
    lines = [line[:_MAX_LINE_CHARACTERS].rstrip() for line in text[:MAX_CHARACTERS].splitlines()[:_MAX_LINES]]
    events: list[FoundEvent] = []
    section: datetime.date | None = None
    for block in _split(lines):
        if len(events) >= MAX_EVENTS:
            break
        if block.kind == "row":
            events.append(_read_row(block, year))
            continue
        event = _read_block(block, year)
        if block.kind == "heading":
            # A heading that is only a day is the day of what is listed below it.
            section = find_date(block.first, year=year) if not event.url else None
            if not event.url and (block.level == 1 or not find_date("\n".join(block.lines), year=year)):
                continue
        elif event.date is None and section is not None and event.url:
            event = replace(event, date=section)
        if event.date is not None or event.url:
            events.append(event)
    return events


def find_date(text: str, *, year: int) -> datetime.date | None:
    """The first date in a text that is one in the calendar."""
    text = text[:_MAX_LINE_CHARACTERS]
    found: list[tuple[int, datetime.date]] = []
    for pattern, order in (
        (_ISO, "ymd"), (_MONTH_FIRST_RANGE, "mdy"), (_MONTH_FIRST, "mdy"), (_DAY_FIRST, "dmy"), (_AMERICAN, "mdy"),
    ):  # fmt: skip
        for match in pattern.finditer(text):
            parts = dict(zip(order, match.groups(), strict=True))
            if (day := _make_date(parts["y"], parts["m"], parts["d"], year)) is not None:
                found.append((match.start(), day))
                break
    # Of two that begin at the same place, the one that was tried first: a range knows its year.
    return min(found, key=lambda item: item[0])[1] if found else None


def is_good_url(url: str) -> bool:
    """Whether it can be an address on the web: http or https, and a name with a dot. Nothing is fetched."""
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").rstrip(".")
        _ = parts.port
    except ValueError:
        return False
    labels = host.split(".")
    return (
        parts.scheme in ("http", "https")
        and len(labels) > 1
        and all(_LABEL.fullmatch(label) for label in labels)
        and not labels[-1].isdigit()
    )


def _make_date(year_text: str | None, month_text: str, day_text: str, year: int) -> datetime.date | None:
    month = int(month_text) if month_text.isdigit() else _MONTHS.index(month_text[:3].lower()) + 1
    number = int(year_text) if year_text else year
    try:
        return datetime.date(number + 2000 if number < 100 else number, month, int(day_text))
    except ValueError:
        return None


def _split(lines: list[str]) -> Iterator[_Block]:
    """Blocks in their order. Code fences contain no blocks: their lines count as text."""
    block: _Block | None = None
    header: list[str] | None = None
    for number, line in enumerate(lines):
        if line.lstrip().startswith("|") or (header is not None and "|" in line):
            if header is None:
                below = lines[number + 1] if number + 1 < len(lines) else ""
                header = _cells(line) if "-" in below and _RULE.fullmatch(below.strip()) else []
            elif not _RULE.fullmatch(line.strip()):
                yield _Block("row", "\x1f".join(header), lines=_cells(line))
            continue
        header = None
        if (start := _find_start(line, block)) is not None:
            if block is not None:
                yield block
            block = start
        elif block is not None and line.strip() and len(block.lines) < _MAX_BLOCK_LINES:
            block.lines.append(line.strip())
        elif block is None and line.strip() and _URL.search(line):
            block = _Block("line", line.strip())
    if block is not None:
        yield block


def _find_start(line: str, block: _Block | None) -> _Block | None:
    """The block that a line begins, None if it belongs to the one before it."""
    if match := _HEADING.match(line):
        return _Block("heading", match[2], level=len(match[1]))
    item = _ITEM.match(line)
    body = item[2] if item else line.strip()
    label, _ = _field(body)
    if block is not None and label in _LABELS - _TITLE_WORDS:
        return None
    if item:
        if block is not None and block.kind == "item" and len(item[1].expandtabs(4)) > block.level:
            return None  # a point of the item above it
        if block is not None and block.kind == "heading" and _is_bare(body) and not _URL.search(block.text):
            return None  # only a date or an address: it belongs to the heading
        return _Block("item", body, level=len(item[1].expandtabs(4)))
    decoration = _DECORATION.match(body)
    bold = _BOLD.match(body, decoration.end() if decoration else 0)
    if bold and label not in _LABELS and _has_word(bold[1]) and not _is_bare(bold[1]):
        return _Block("line", body)
    return None


def _read_row(block: _Block, year: int) -> FoundEvent:
    """A row of a table: by the headers of its columns, or if these say nothing, by its content."""
    names = [_plain(name).strip().lower() for name in block.first.split("\x1f")]
    cells = dict(enumerate(block.lines))
    whole = " | ".join(block.lines)

    def column(words: set[str]) -> str:
        return next((cells.get(n, "") for n, name in enumerate(names) if name in words), "")

    url, good = _find_url(column(_URL_WORDS), bare=True)
    if not url:
        url, good = _find_url(whole)
    title = _title(column(_TITLE_WORDS)) or next(
        (found for cell in block.lines if not _is_bare(cell) and (found := _title(cell))), ""
    )
    date = find_date(column(_DATE_WORDS), year=year) or find_date(whole, year=year)
    return FoundEvent(title=title, date=date, url=url, url_is_good=good, text=whole[:_MAX_LINE_CHARACTERS])


def _read_block(block: _Block, year: int) -> FoundEvent:
    title, date_text, url_text = "", "", ""
    for line in block.lines:
        label, value = _field(line)
        title = title or (_title(value) if label in _TITLE_WORDS else "")
        date_text = date_text or (value if label in _DATE_WORDS and find_date(value, year=year) else "")
        url_text = url_text or (value if label in _URL_WORDS else "")
    label, value = _field(block.first)
    first = value if label in _TITLE_WORDS else block.first
    url, good = _find_url(url_text, bare=True)
    if not url:
        url, good = _find_url(block.text)
    date = find_date(date_text, year=year) or find_date(_URL.sub(" ", block.text), year=year)
    return FoundEvent(
        title=_title(first) or title, date=date, url=url, url_is_good=good, text=block.text[:_MAX_LINE_CHARACTERS]
    )


def _find_url(text: str, *, bare: bool = False) -> tuple[str, bool]:
    """An address, and whether it is valid. A valid one is preferred; with `bare` any word counts as an address."""
    for match in _URL.finditer(text):
        url = match[0].rstrip(".,;:!?*_")
        if is_good_url(url):
            return url, True
    if link := _LINK.search(text):
        return link[2], False
    if wrong := _URL.search(text):
        return wrong[0], False
    if bare and (words := _plain(text).split()):
        return words[0][:200], False
    return "", False


def _title(text: str) -> str:
    """The first part of a line, without address, date, decoration and number."""
    return re.sub(r"^\d{1,3}[.)] {1,5}", "", _first_part(text))


def _first_part(text: str) -> str:
    if (match := _LINK.search(text)) and not _URL.match(match[1]) and _has_word(match[1]) and not _is_bare(match[1]):
        bold = _BOLD.search(text[: match.start()])
        return _plain(bold[1] if bold and _has_word(bold[1]) else match[1])[:300]
    for match in _BOLD.finditer(text):
        if _has_word(match[1]) and not _is_bare(match[1]):
            return _plain(match[1])[:300]
    for part in re.split(r" [-–—|·@] |[|—]|, |: | \(", _plain(_URL.sub(" ", text))):
        if _has_word(part) and not _is_bare(part):
            return part.strip()[:300]
    return ""


def _is_bare(text: str) -> bool:
    """Whether it is only a date, a time or an address."""
    rest = _URL.sub(" ", text)
    for pattern in (_ISO, _MONTH_FIRST_RANGE, _MONTH_FIRST, _DAY_FIRST, _AMERICAN):
        rest = pattern.sub(" ", rest)
    words = re.findall(r"[^\W\d_]{2,}", rest)
    return not [word for word in words if word.lower() not in _FILLERS]


_FILLERS = {
    "mon", "tue", "tues", "wed", "thu", "thur", "thurs", "fri", "sat", "sun", "monday", "tuesday", "wednesday",
    "thursday", "friday", "saturday", "sunday", "am", "pm", "pt", "pst", "pdt", "utc", "at", "to", "from", "on", "link",
    "url", "rsvp", "date", "register", "here", "th", "st", "nd", "rd", "more", "info", "when",
}  # fmt: skip


def _has_word(text: str) -> bool:
    return re.search(r"[^\W\d_]{2,}", text) is not None


def _field(line: str) -> tuple[str, str]:
    """The label and the value of a line such as `Date: 1 May`; without a label, an empty one and the whole line."""
    match = _FIELD.match(line)
    return (match[1].strip().lower(), match[2]) if match else ("", line)


def _plain(text: str) -> str:
    """Without Markdown's signs."""
    text = _SIGNS.sub("", text)
    decoration = _DECORATION.match(text)
    return text[decoration.end() if decoration else 0 :].strip(" \t-–—:|·")


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")][:50]
