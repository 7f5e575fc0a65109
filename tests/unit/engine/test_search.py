"""Glob patterns: `*` and `?` stay within a name, `**` crosses folders, everything else means itself."""

import re

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


@pytest.mark.parametrize(("pattern", "path"), MATCHES)
def test_pattern_matches(pattern: str, path: str) -> None:
    assert compile_glob(pattern).fullmatch(path)


@pytest.mark.parametrize(("pattern", "path"), REFUSALS)
def test_pattern_does_not_match(pattern: str, path: str) -> None:
    assert not compile_glob(pattern).fullmatch(path)


@pytest.mark.parametrize(
    "pattern", ["", "[", "[!", "[]", "***", "**/**/**", "a/**b/c", "\\", "[z-a]", "[a-", "(", "{a,b}"]
)
def test_any_text_is_a_pattern(pattern: str) -> None:
    assert isinstance(compile_glob(pattern), re.Pattern)


@pytest.mark.timeout(20)  # a pattern that backtracks would take years
def test_many_stars_do_not_take_for_ever() -> None:
    assert not compile_glob("*a" * 25 + "b").fullmatch("a" * 3000)
    assert not compile_glob("**/" * 12 + "x").fullmatch("a/" * 40 + "y")
