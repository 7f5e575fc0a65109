"""How many values a JSON text has, before it is parsed.

A parser holds the interpreter's lock until it is done, and needs a hundred bytes of memory for each `{},`: so hostile
JSON is bounded first, by functions that read the text once.
"""

from __future__ import annotations


def outside_texts(data: bytes, *, max_texts: int) -> tuple[int, bytes] | None:
    """The number of strings, and the text outside them; None if there are more than `max_texts`.

    For malformed JSON the result means nothing: the parser refuses it.
    """
    if b"\\" in data:
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")  # in JSON they stand in strings alone
    quotes = data.count(b'"')
    if quotes > 2 * max_texts:
        return None
    return quotes // 2, b"".join(data.split(b'"')[::2])


def count_values(data: bytes, *, most: int) -> int:
    """About how many strings, numbers, objects and lists a JSON text has; more than `most` if it has more."""
    rough = _count(data)
    if rough <= most:
        return rough  # the text in strings was counted too, so this is an upper bound
    found = outside_texts(data, max_texts=2 * most)
    return most + 1 if found is None else _count(found[1])


def _count(data: bytes) -> int:
    return data.count(b",") + data.count(b"[") + data.count(b"{")
