"""The translation of globs agrees with a slow, plain reference."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.inside.glob import compile_glob

ALPHABET = "ab.-[]!*?\\^/ \n"
NAMES = st.text(st.sampled_from("ab.-[]!*?\\^ \n"), min_size=1, max_size=5)
PATHS = st.lists(NAMES, min_size=1, max_size=4).map("/".join)
SEGMENTS = st.one_of(st.just("**"), st.text(st.sampled_from(ALPHABET.replace("/", "")), min_size=1, max_size=6))
PATTERNS = st.lists(SEGMENTS, min_size=1, max_size=4).map("/".join)


def matches(pattern: str, path: str) -> bool:
    """`**` alone is any number of folders (at the end: anything below); the rest is name by name."""
    return _parts(pattern.strip("/").split("/"), path.split("/"))


def _parts(pattern: list[str], path: list[str]) -> bool:
    if not pattern:
        return not path
    if pattern[0] == "**":
        if len(pattern) == 1:
            return bool(path)
        return any(_parts(pattern[1:], path[skip:]) for skip in range(len(path) + 1))
    return bool(path) and _name(pattern[0], path[0]) and _parts(pattern[1:], path[1:])


def _name(pattern: str, name: str) -> bool:
    if not pattern:
        return not name
    if pattern[0] == "*":
        return any(_name(pattern[1:], name[skip:]) for skip in range(len(name) + 1))
    if not name:
        return False
    if pattern[0] == "?":
        return _name(pattern[1:], name[1:])
    if pattern[0] == "[" and (end := _close(pattern)):
        return _in_class(pattern[1:end], name[0]) and _name(pattern[end + 1 :], name[1:])
    return pattern[0] == name[0] and _name(pattern[1:], name[1:])


def _close(pattern: str) -> int:
    start = 2 if pattern[1:2] in ("!", "^") else 1
    return max(0, pattern.find("]", start + 1))


def _in_class(body: str, char: str) -> bool:
    negated, found = body.startswith(("!", "^")), False
    text = body[1:] if negated else body
    while text:
        if len(text) >= 3 and text[1] == "-":
            found, text = found or text[0] <= char <= text[2], text[3:]
        else:
            found, text = found or text[0] == char, text[1:]
    return found != negated


@given(pattern=PATTERNS, path=PATHS)
def test_translation_agrees_with_the_reference(pattern: str, path: str) -> None:
    assert bool(compile_glob(pattern).fullmatch(path)) == matches(pattern, path)


@pytest.mark.parametrize(
    ("pattern", "path", "wanted"),
    [
        ("[.]x", ".x", True),
        ("[!a]b", "/b", False),
        ("\\*", "\\a", True),
        ("\\*", "\\a/b", False),
        ("a[b", "a[b", True),
        ("[]]", "]", True),
        ("[!]]", "a", True),
        ("**/x", "x", True),
        ("a/**", "a/b/c", True),
        ("*", "new\nline", True),
        ("[a-]", "-", True),
        ("[z-a]", "m", False),
    ],
)
def test_known_corners(pattern: str, path: str, wanted: bool) -> None:
    assert matches(pattern, path) == wanted, "the reference itself"
    assert bool(compile_glob(pattern).fullmatch(path)) == wanted
