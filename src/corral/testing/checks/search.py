"""Searching trees: glob, grep, replace."""

from __future__ import annotations

from corral.base.files import AsyncFiles
from corral.errors import SandboxFileError, SandboxFileNotFoundError
from corral.testing.check import check, equal, raises, true, write_tree

TREE = {
    "a.py": "import os\nprint('A')\n",
    "b.txt": "hello world\r\nHello again\r\n",
    "sub/c.py": "def f():\n    return 'hello'\n",
    "sub/deep/d.py": "hello = 1\n",
    "sub/deep/e.md": "# hello\n",
    ".hidden/f.py": "hello hidden\n",
    "x[1].py": "odd\n",
    "bin.dat": "hello\0binary\n",
}


@check("files.glob", "* matches within a folder, ** across folders, and classes and ? work")
async def glob_matches(files: AsyncFiles, home: str) -> None:
    await write_tree(files, TREE, links={"loop": "."})
    wanted = {
        "*.py": ["a.py", "x[1].py"],
        "**/*.py": [".hidden/f.py", "a.py", "sub/c.py", "sub/deep/d.py", "x[1].py"],
        "sub/*": ["sub/c.py", "sub/deep"],
        "sub/**": ["sub/c.py", "sub/deep", "sub/deep/d.py", "sub/deep/e.md"],
        "**/deep/*.m?": ["sub/deep/e.md"],
        "[ab].*": ["a.py", "b.txt"],
        "[!a].py": [],
        "[!ab]*": [".hidden", "loop", "sub", "x[1].py"],
        "x[[]1].py": ["x[1].py"],
        "[.]hidden": [".hidden"],
        "a.p[x-z]": ["a.py"],
        "a?py": ["a.py"],
        "sub?c.py": [],
        "sub[/]c.py": [],
        "sub[!x]c.py": [],
        "nothing*": [],
        "sub/deep": ["sub/deep"],
    }
    for pattern, paths in wanted.items():
        result = await files.glob(pattern)
        equal(sorted(path.removeprefix(f"{home}/") for path in result.paths), sorted(paths), pattern)
        equal((result.truncated, result.unreadable), (False, ()))


@check("files.glob", "A root, hidden names and a limit are honoured; absolute patterns work",
       raises="SandboxFileNotFoundError")  # fmt: skip
async def glob_has_its_options(files: AsyncFiles, home: str) -> None:
    await write_tree(files, TREE, links={"loop": "."})
    equal((await files.glob("*.py", path="sub")).paths, [f"{home}/sub/c.py"])
    true(f"{home}/.hidden/f.py" not in (await files.glob("**/*.py", hidden=False)).paths, "hidden=False")
    equal((await files.glob(f"{home}/sub/deep/*")).paths, [f"{home}/sub/deep/d.py", f"{home}/sub/deep/e.md"])
    some = await files.glob("**", limit=3)
    equal((len(some.files), some.truncated), (3, True))
    await raises(SandboxFileNotFoundError, files.glob("*", path="missing"))
    await files.mkdir("shut/inner")
    await files.chmod("shut", 0)
    true(any("shut" in line for line in (await files.glob("**")).unreadable), "an unreadable folder is reported")


@check("files.glob", "A pattern of many stars does not take exponential time")
async def glob_of_many_stars_ends(files: AsyncFiles) -> None:
    await files.write("/".join("a" * 60) + "/file", b"x")
    pattern = "**/a/" * 16 + "b"  # trying again at each star would take years
    equal((await files.glob(pattern)).paths, [])
    equal((await files.grep("x", include=pattern)).matches, ())
    equal((await files.replace("x", "y", include=pattern)).total, 0)


@check("files.grep", "Lines are found with path and number, in text files, links not followed",
       raises="SandboxFileNotFoundError")  # fmt: skip
async def grep_finds_lines(files: AsyncFiles, home: str) -> None:
    await write_tree(files, TREE, links={"loop": "."})
    found = [
        (match.path.removeprefix(f"{home}/"), match.line, match.text) for match in (await files.grep("hello")).matches
    ]
    wanted = [("b.txt", 1, "hello world"), ("sub/c.py", 2, "    return 'hello'"), ("sub/deep/d.py", 1, "hello = 1"),
              ("sub/deep/e.md", 1, "# hello")]  # fmt: skip
    equal(sorted(found), sorted(wanted))
    equal(len((await files.grep("hello", ignore_case=True)).matches), 5)
    equal(len((await files.grep("hello", hidden=True)).matches), 5)
    equal([m.line for m in (await files.grep(r"^\s+return\b", path="sub")).matches], [2])
    equal(len((await files.grep("hello", include="*.py")).matches), 2)
    equal(len((await files.grep("hello", include="sub/*.py")).matches), 1)
    equal(len((await files.grep("hello", path="b.txt")).matches), 1)
    skipped = [info.path for info in (await files.glob("b.txt")).files]
    equal(len((await files.grep("hello", path="b.txt", without=skipped)).matches), 0)
    equal(len((await files.grep("hello", without=skipped)).matches), 3)
    some = await files.grep("", limit=2)
    equal((len(some.matches), some.truncated), (2, True))
    await raises(SandboxFileNotFoundError, files.grep("x", path="missing"))


@check("files.grep", "Patterns with dashes, metacharacters or bytes work; invalid ones are refused",
       raises="SandboxFileError")  # fmt: skip
async def grep_takes_odd_patterns(files: AsyncFiles) -> None:
    await files.write("odd.txt", b"--flag (x) [y] $z\n\xe9 latin\nlast without newline")
    for pattern in ("--flag", "-e", "(x)", "[y]", "$z", ".*", "\\", "a\nb"):
        wanted = int(pattern in ("--flag", "(x)", "[y]", "$z"))
        equal(len((await files.grep(pattern, fixed=True)).matches), wanted, pattern)
    equal([m.line for m in (await files.grep("\udce9", fixed=True)).matches], [2], "bytes that are not UTF-8")
    equal([m.text for m in (await files.grep("newline$")).matches], ["last without newline"])
    await files.write("long.txt", b"first\n" + b"word " * 700_000 + b"\nlast word\n")
    equal([m.line for m in (await files.grep("word", path="long.txt")).matches], [2, 3], "a line of megabytes is one")
    for pattern in ("(", "[", "*", "(?P<x", "a{2,1}"):
        error = await raises(SandboxFileError, files.grep(pattern))
        true("regular expression" in str(error), f"{pattern!r}: {error}")


@check("files.replace", "Replacing in a tree changes text files atomically, and reports where",
       raises="SandboxFileError SandboxFileNotFoundError")  # fmt: skip
async def replace_changes_a_tree(files: AsyncFiles, home: str) -> None:
    await write_tree(files, TREE, links={"loop": "."})
    await files.chmod("sub/deep/d.py", 0o600)
    result = await files.replace("hello", "bye.\\1")
    counts = {path.removeprefix(f"{home}/"): count for path, count in result.replacements.items()}
    equal(counts, {"b.txt": 1, "sub/c.py": 1, "sub/deep/d.py": 1, "sub/deep/e.md": 1})
    equal(result.total, 4)
    equal(await files.read("b.txt"), b"bye.\\1 world\r\nHello again\r\n")
    equal((await files.stat("sub/deep/d.py")).mode, 0o600)
    equal(await files.read("bin.dat"), b"hello\0binary\n", "binary files are left alone")
    again = await files.replace(r"bye\.\\(\d)", r"[\1]", fixed=False, include="*.md")
    equal((again.total, await files.read("sub/deep/e.md")), (1, b"# [1]\n"))
    await raises(SandboxFileError, files.replace("(", "x", fixed=False))
    error = await raises(SandboxFileError, files.replace("bye", r"\9", fixed=False))
    true("is not a replacement" in str(error), str(error))
    await raises(SandboxFileNotFoundError, files.replace("x", "y", path="missing"))
