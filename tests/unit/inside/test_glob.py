"""Glob patterns: `*` and `?` stay within a name, `**` crosses folders, everything else means itself."""

import pytest

from corral.inside.glob import compile_glob, find_depth, split_absolute

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
    ("*a*b*", "xaxbx"),
    ("*ab", "aab"),
    ("a*?b", "axyb"),
    ("**/a/**/a/b", "x/a/a/y/a/b"),
    ("**/a*/b/**/c", "ab/ac/b/c"),
    ("**/**/a", "a"),
    ("a/**", "a/b/c"),
    ("**", "a/b"),
    ("a/**/b", "a/b"),
    ("[!a]*", "ba"),
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
    ("*a*b*", "xbxax"),
    ("**/a/**/a/b", "x/a/b"),
]


def test_pattern_matches() -> None:
    assert [(pattern, path) for pattern, path in MATCHES if not compile_glob(pattern).fullmatch(path)] == []


def test_pattern_does_not_match() -> None:
    assert [(pattern, path) for pattern, path in REFUSALS if compile_glob(pattern).fullmatch(path)] == []


def test_text_that_is_no_pattern_means_itself() -> None:
    """Also what a half-written class, or a pattern of another shell, looks like."""
    texts = ("", "[", "[!", "[]", "***", "**/**/**", "a/**b/c", "\\", "[a-", "(", "{a,b}")
    assert [text for text in texts if not compile_glob(text).fullmatch(text)] == []


HOSTILE = [
    ("*a" * 25 + "b", "a" * 3000),
    ("**/" * 40 + "b", "/".join("a" * 1000)),
    ("**/a/" * 40 + "b", "/".join("a" * 1000)),
    ("**/*a*a*a*/" * 10 + "b", "/".join(["aaaaaaaaaa"] * 200)),
]
"""Patterns that a model may write, which a translation that tries again at each star can't match in a lifetime."""


@pytest.mark.timeout(60)  # backtracking would take years: there is nothing to measure
@pytest.mark.parametrize(("pattern", "path"), HOSTILE)
def test_many_stars_do_not_take_for_ever(pattern: str, path: str) -> None:
    assert not compile_glob(pattern).fullmatch(path)


def test_depth_is_known_without_double_stars() -> None:
    assert [find_depth(pattern) for pattern in ("*", "/a/b/", "a/*/c", "**", "a/**/b")] == [1, 2, 3, None, None]


def test_absolute_patterns_begin_with_the_folder_that_has_no_star() -> None:
    patterns = ("/a/b/*.py", "/*", "/a", "//a//b", "/a/[b]/c", "/a/**/b")
    wanted = [("/a/b", "*.py"), ("/", "*"), ("/", "a"), ("/a", "b"), ("/a", "[b]/c"), ("/a", "**/b")]
    assert [split_absolute(pattern) for pattern in patterns] == wanted
