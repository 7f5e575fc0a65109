"""The text that a model sees, made in this one place: bounded, harmless, and honest about what was left out.

Output of a sandbox may be written to deceive: escape sequences that repaint a terminal, characters that reverse the
direction of text, invisible characters. They are made visible. The last line of a result is always ours, so that a
program can't fake how it ended.
"""

from __future__ import annotations

import re
import signal
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

from corral.base.denials import describe_denials
from corral.base.needs import describe_needs
from corral.results import Denial, ExecResult, FileInfo, GlobResult, GrepResult
from corral.spec import NetworkPolicy

DEFAULT_MAX_CHARS = 30_000
"""The maximum length of a text for a model."""
LEAST_MAX_CHARS = 500
MAX_LINE_CHARS = 2_000
_GREP_LINE_CHARS = 300
_LINE_NOTE_CHARS = 120
"""Space for the note that a line was cut."""
_SIGNALS = {each.value: each.name for each in signal.Signals}

GrepMode = Literal["content", "files_with_matches", "count"]


class ToolText(str):
    """The text for a model. `ok` is False if something was refused or failed; `error` is the code of the error.

    `result` is the result behind it, for the program around the model: an `ExecResult`, an `EditResult` …
    """

    ok: bool
    error: str | None
    truncated: bool
    result: object

    def __new__(
        cls, text: str, *, ok: bool = True, error: str | None = None, truncated: bool = False, result: object = None
    ) -> ToolText:
        """A text; with an `error`, `ok` is False."""
        self = super().__new__(cls, text)
        self.ok = ok and error is None
        self.error = error
        self.truncated = truncated
        self.result = result
        return self

    def __getnewargs_ex__(self) -> tuple[tuple[str], dict[str, object]]:
        """For copying and pickling, which frameworks do."""
        state = {"ok": self.ok, "error": self.error, "truncated": self.truncated, "result": self.result}
        return (str(self),), state


# Harmless.

# Colours are useless to a model, and are dropped. Of any other escape sequence only the escape is replaced.
_COLOUR = re.compile(r"\x1b\[[0-9;:]{0,64}m")
# Only from the first \r on: otherwise a long row of \r without a \n would be scanned again from each position.
_LINE_END = re.compile(r"(?<!\r)\r+\n")


def _build_table() -> dict[int, str]:
    table = {code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\t\n"}
    table[0x7F] = "\u2421"
    unseen = [
        *range(0x80, 0xA0),  # C1 controls: 0x9b also begins an escape sequence
        *range(0x2028, 0x202F),  # other line ends, embeddings and overrides of direction
        *range(0xFFF9, 0xFFFC),  # interlinear annotations
        # And all characters that a display may leave out: whole messages can be hidden in them.
        0x00AD,
        0x034F,
        0x061C,
        *range(0x115F, 0x1161),
        *range(0x17B4, 0x17B6),
        *range(0x180B, 0x1810),
        *range(0x200B, 0x2010),  # zero width, and marks of direction
        *range(0x2060, 0x2070),  # isolates, and invisible operators
        0x3164,
        *range(0xFE00, 0xFE10),
        0xFEFF,
        0xFFA0,
        *range(0xFFF0, 0xFFF9),
        *range(0x1BCA0, 0x1BCA4),
        *range(0x1D173, 0x1D17B),
        *range(0xE0000, 0xE1000),  # tags and more variation selectors: whole invisible alphabets
    ]
    table |= {code: f"<U+{code:04X}>" for code in unseen}
    # The joiner of emoji, the one that Persian needs, and the selectors of emoji or text style.
    for code in (0x200D, 0x200C, 0xFE0E, 0xFE0F):
        del table[code]
    table |= dict.fromkeys(range(0xD800, 0xE000), "\ufffd")  # a lone surrogate breaks the JSON it is sent in
    return table


_TABLE = _build_table()


def make_harmless(text: str) -> str:
    """The text without colours, and with control and invisible characters made visible."""
    return _COLOUR.sub("", _LINE_END.sub("\n", text)).translate(_TABLE)


def quote(text: str, *, max_chars: int = 200) -> str:
    """A foreign text on one line, shortened, to be part of a line of ours."""
    shown = make_harmless(text).replace("\n", "\u240a")
    return shown if len(shown) <= max_chars else f"{shown[: max_chars - 1]}…"


# Bounded.


def bound(text: str, *, max_chars: int, hint: str) -> tuple[str, bool]:
    """The text in at most `max_chars`, and True if it was cut.

    A text that is cut keeps its beginning and its end; a note between them says what is missing and how to get it.
    """
    max_chars = max(max_chars, LEAST_MAX_CHARS)
    if len(text) <= max_chars:
        return text, False
    room = max_chars - len(_gap(len(text), text.count("\n"), hint))
    head = _cut_back(text[: room // 2])
    tail = _cut_front(text[len(text) - (room - len(head)) :])
    missing = text[len(head) : len(text) - len(tail)]
    return f"{head}{_gap(len(missing), missing.count(chr(10)), hint)}{tail}", True


def _gap(characters: int, lines: int, hint: str) -> str:
    return f"\n[… {characters} characters ({lines} lines) left out; {hint} …]\n"


def _cut_back(text: str) -> str:
    """The text up to the end of a line, if that drops little."""
    end = text.rfind("\n")
    return text[:end] if end > len(text) * 3 // 4 else text


def _cut_front(text: str) -> str:
    start = text.find("\n")
    return text[start + 1 :] if 0 <= start < len(text) // 4 else text


# Results of programs.

OUTPUT_HINT = "write the output to a file and read it piece by piece, or print less"
"""For tools that may write files."""


def render_result(
    result: ExecResult,
    *,
    network: NetworkPolicy | None = None,
    max_chars: int = DEFAULT_MAX_CHARS,
    hint: str = OUTPUT_HINT,
) -> ToolText:
    """The output of a program, in order, how it ended, and what it lacked in a sandbox with this `network`."""
    footer = f"[{describe_end(result)}]{_own_line(describe_needs(result, network or NetworkPolicy(), door='model'))}"
    body, cut = bound(make_harmless(result.output), max_chars=max_chars - len(footer) - 1, hint=hint)
    body = body.rstrip("\n") or "(no output)"
    return ToolText(f"{body}\n{footer}", ok=result.ok, truncated=cut or result.truncated, result=result)


def render_denials(denied: Sequence[Denial], network: NetworkPolicy | None) -> str:
    """A line for the model about what the network refused, after a line end. Empty if it refused nothing."""
    return _own_line(describe_denials(denied, network or NetworkPolicy(), door="model"))


def _own_line(text: str) -> str:
    return f"\n[{text}]" if text else ""


def describe_end(result: ExecResult) -> str:
    """One line with the exit code, why the program ended, how long it took, and what is missing of its output."""
    seconds = result.usage.wall_seconds
    parts = [f"exit code: {result.exit_code}"]
    if result.reason == "timeout":
        parts.append(f"timed out after {seconds:.1f} s and was killed with everything it had started")
    elif result.reason == "oom":
        parts.append("killed by the sandbox's memory limit")
    elif result.reason == "cancelled":
        parts.append("cancelled")
    elif result.signal is not None:
        parts.append(f"killed by signal {result.signal} ({_SIGNALS.get(result.signal, 'unknown')})")
    if result.limit is not None:
        parts.append(f"killed by the sandbox's {result.limit} limit")
    if result.reason != "timeout":
        parts.append(f"{seconds:.2f} s")
    if result.truncated:
        total = result.stdout_total_bytes + result.stderr_total_bytes
        parts.append(f"of {total} bytes of output the middle was not kept")
    if replaced := result.replaced_bytes:
        parts.append(f"{replaced} bytes were not UTF-8 and are shown as \ufffd")
    return "; ".join(parts)


# Files.


def render_error(message: str, *, code: str) -> ToolText:
    """The text of an error that a model can correct."""
    text, cut = bound(make_harmless(message), max_chars=LEAST_MAX_CHARS * 4, hint="the message was longer")
    return ToolText(f"Error: {text}", error=code, truncated=cut)


def render_lines(
    lines: Sequence[str],
    *,
    first: int,
    total: int | None,
    max_chars: int = DEFAULT_MAX_CHARS,
    tags: Sequence[str] | None = None,
    beyond: Mapping[int, int] | None = None,
) -> ToolText:
    """Numbered lines of a file, from line `first` (1 is the first) on, as many as fit.

    The last line says how to continue. `tags` are shown instead of plain numbers. `total` is None if the lines were not
    counted to the end. `beyond` maps the index of a line to how many of its bytes were not read.
    """
    shown: list[str] = []
    cut = False
    room = max(max_chars, LEAST_MAX_CHARS) - 150
    for index, line in enumerate(lines):
        number = first + index
        tag = tags[index] if tags is not None else f"{number:6d}\t"
        # The first line is always shown, if need be in part: otherwise reading could never continue.
        most = min(MAX_LINE_CHARS, max(0, room - len(tag) - _LINE_NOTE_CHARS)) if not shown else MAX_LINE_CHARS
        text, is_cut = _render_line(line, number=number, max_chars=most, beyond_bytes=(beyond or {}).get(index, 0))
        room -= len(tag) + len(text) + 1
        if room < 0:
            break
        shown.append(f"{tag}{text}")
        cut = cut or is_cut
    last = first + len(shown) - 1
    if total is not None and last >= total:
        return ToolText("\n".join(shown) or "(the file is empty)", truncated=cut)
    of = f" of {total}" if total is not None else ""
    return ToolText("\n".join([*shown, f"[lines {first}–{last}{of}; read on with offset={last}]"]), truncated=True)


def _render_line(line: str, *, number: int, max_chars: int, beyond_bytes: int) -> tuple[str, bool]:
    """The line as it is shown, and True if it was cut."""
    kept = line[:max_chars]
    text = make_harmless(kept)
    while len(text) > max_chars:  # characters that are made visible get longer
        kept = kept[: len(kept) * max_chars // len(text)]
        text = make_harmless(kept)
    left = len(line[len(kept) :].encode("utf-8", "replace")) + beyond_bytes
    if not left:
        return text, False
    at = len(kept.encode("utf-8", "replace"))
    return f"{text} [… {left} more bytes in this line; in a shell: sed -n {number}p FILE | tail -c +{at + 1}]", True


def count_lines(content: str) -> int:
    """The number of lines; the last one need not end in a newline."""
    return content.count("\n") + (1 if content and not content.endswith("\n") else 0)


def render_binary(path: str, *, size: int, beginning: bytes) -> ToolText:
    """The answer for a file that is not text."""
    start = " ".join(f"{byte:02x}" for byte in beginning[:16])
    text = f"{quote(path)} is not a text file: {size} bytes, starting with {start}. Use code to look at it."
    return ToolText(text, error="not_text")


def render_listing(path: str, entries: Sequence[FileInfo], *, max_chars: int = DEFAULT_MAX_CHARS) -> ToolText:
    """The entries of a folder: folders first, then files with their sizes."""
    if not entries:
        return ToolText(f"{quote(path)} is empty")
    ordered = sorted(entries, key=lambda info: (not info.is_folder, info.name))
    lines = [f"Contents of {quote(path)}:", *(f"  {_describe_file(info)}" for info in ordered)]
    text, cut = bound("\n".join(lines), max_chars=max_chars, hint="list a folder below, or use glob")
    return ToolText(text, truncated=cut)


def _describe_file(info: FileInfo) -> str:
    name = quote(info.name, max_chars=300)
    if info.is_folder:
        return f"{name}/"
    if info.kind == "link":
        return f"{name} -> {quote(info.target or '?', max_chars=300)}"
    return f"{name} ({info.size} bytes)" if info.kind == "file" else f"{name} ({info.kind})"


def render_glob(pattern: str, result: GlobResult, *, max_chars: int = DEFAULT_MAX_CHARS) -> ToolText:
    """The paths that match a pattern."""
    head = f"No files match {quote(pattern)!r}"
    if result.files:
        more = " at least" if result.truncated else ""
        head = f"Found{more} {len(result.files)} paths that match {quote(pattern)!r}:"
    lines = [f"  {quote(info.path, max_chars=1000)}{'/' if info.is_folder else ''}" for info in result.files]
    return _render_found([head, *lines], result, hint="give a narrower pattern", max_chars=max_chars)


def render_grep(
    pattern: str, result: GrepResult, *, mode: GrepMode = "content", max_chars: int = DEFAULT_MAX_CHARS
) -> ToolText:
    """The lines that match, or the files they are in, or the number of matches in each file."""
    if not result.matches:
        lines = [f"No matches for {quote(pattern)!r}"]
    elif mode == "content":
        lines = [
            f"{quote(match.path, max_chars=1000)}:{match.line}: {quote(match.text, max_chars=_GREP_LINE_CHARS)}"
            for match in result.matches
        ]
    else:
        counts = Counter(match.path for match in result.matches)
        lines = [
            f"{quote(path, max_chars=1000)}{f': {count}' if mode == 'count' else ''}" for path, count in counts.items()
        ]
    return _render_found(lines, result, hint="give a narrower pattern or path", max_chars=max_chars)


def _render_found(lines: list[str], result: GlobResult | GrepResult, *, hint: str, max_chars: int) -> ToolText:
    """What a search found, and notes on what it could not read or left out."""
    if result.unreadable:
        shown = ", ".join(quote(path, max_chars=100) for path in result.unreadable[:5])
        lines = [*lines, f"[{len(result.unreadable)} could not be read: {shown}]"]
    if result.truncated:
        lines = [*lines, f"[there are more; {hint}]"]
    text, cut = bound("\n".join(lines), max_chars=max_chars, hint=hint)
    return ToolText(text, truncated=cut or result.truncated, result=result)
