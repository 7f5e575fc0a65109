"""Glob patterns: `*` and `?` stay within a name, `**` crosses folders, everything else means itself."""

import pytest

from corral.engine.agent.search import compile_glob

MATCHES = [
    ("*", "a"),
    ("*", ".hidden"),
    ("*.py", "a.py"),
    ("*.py", ".py"),
    ("a*c", "abc"),
    ("a*c", "ac"),
    ("a*b*c*d", "a-b-c-d"),
    ("?", "x"),
    ("?.?", "a.b"),
    ("[ab]x", "bx"),
    ("[!ab]x", "cx"),
    ("[a-c]", "b"),
    ("src/*.py", "src/a.py"),
    ("**", "a"),
    ("**", "a/b/c"),
    ("**/*.py", "a.py"),
    ("**/*.py", "a/b/c.py"),
    ("a/**", "a/b"),
    ("a/**", "a/b/c"),
    ("a/**/z", "a/z"),
    ("a/**/z", "a/b/c/z"),
    ("**/b/**", "a/b/c"),
    ("a.b", "a.b"),
    ("a+b(c)|d", "a+b(c)|d"),
    ("a\nb", "a\nb"),
    ("*", "a\nb"),
    ("*.txt", "\udcff.txt"),
    ("*.tar.gz", "x.tar.gz"),
    ("v?.*.txt", "v1.2.txt"),
    ("[.]env", ".env"),
    ("x[.]y", "x.y"),
    ("[!.]*", "visible"),
    ("[a.]*[.b]", "a-b"),
    ("[*]", "*"),
    ("[?]", "?"),
    ("a\\*", "a\\b"),
    ("[]]", "]"),
    ("[", "["),
    ("[a", "[a"),
    ("/etc/*", "etc/x"),
    ("dir/", "dir"),
]
REFUSALS = [
    ("*", "a/b"),
    ("?", "/"),
    ("?", ""),
    ("a?b", "a/b"),
    ("a*b", "a/b"),
    ("a*b*c", "a/b/c"),
    ("*.py", "a/b.py"),
    ("*.py", "apy"),
    ("a.b", "axb"),
    ("**/*.py", "a.pyc"),
    ("a/**/z", "az"),
    ("a/**/z", "a/xz"),
    ("src/*", "src/a/b"),
    ("a[!x]b", "a/b"),
    ("[ab]", "ab"),
    ("[.]env", "xenv"),
    ("[!.]*", ".hidden"),
    ("x[.]y", "x/y"),
    ("a\\*", "a\\b/c"),
    ("a\\?", "a\\/"),
    ("*[.]py", "a/b.py"),
    ("*a*b*", "xa/by"),
]


def test_pattern_matches() -> None:
    assert [(pattern, path) for pattern, path in MATCHES if not compile_glob(pattern).fullmatch(path)] == []


def test_pattern_does_not_match() -> None:
    assert [(pattern, path) for pattern, path in REFUSALS if compile_glob(pattern).fullmatch(path)] == []


def test_text_that_is_no_pattern_means_itself() -> None:
    """Also what a half-written class, or a pattern of another shell, looks like."""
    texts = ("", "[", "[!", "[]", "***", "**/**/**", "a/**b/c", "\\", "[a-", "(", "{a,b}")
    assert [text for text in texts if not compile_glob(text).fullmatch(text)] == []


@pytest.mark.timeout(20)  # a pattern that backtracks would take years
def test_many_stars_do_not_take_for_ever() -> None:
    assert not compile_glob("*a" * 25 + "b").fullmatch("a" * 3000)
    assert not compile_glob("**/" * 12 + "x").fullmatch("a/" * 40 + "y")
