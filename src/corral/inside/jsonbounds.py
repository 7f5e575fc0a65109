"""How much a JSON text holds, before it is parsed.

A parser holds the interpreter's lock until it is done, and makes a hundred bytes of each `{},`: so hostile JSON is
bounded first. What depends on the text's length is done by functions that run through memory once.
"""

from __future__ import annotations


def outside_texts(data: bytes, *, max_texts: int) -> tuple[int, bytes] | None:
    """How many strings there are, and what stands outside them; None if there are more than `max_texts`.

    Of what is no JSON, anything may be told: the parser refuses it.
    """
    if b"\\" in data:
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")  # in JSON they stand in strings alone
    quotes = data.count(b'"')
    if quotes > 2 * max_texts:
        return None
    return quotes // 2, b"".join(data.split(b'"')[::2])


def count_values(data: bytes, *, most: int) -> int:
    """About how many strings, numbers, objects and lists a JSON text has; if it is more than `most`, then something
    above that."""
    rough = _count(data)
    if rough <= most:
        return rough  # with what stands in strings, which can only be too many
    found = outside_texts(data, max_texts=2 * most)
    return most + 1 if found is None else _count(found[1])


def _count(data: bytes) -> int:
    return data.count(b",") + data.count(b"[") + data.count(b"{")
