"""The project's own files, and the little of Markdown that the tests of the docs need."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "corral"

_FENCE = re.compile(r"^(?P<indent> *)(?P<fence>```+|~~~+)(?P<language>[\w+-]*)")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a Markdown file."""

    file: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.file.name}:{self.line}"


def list_files(*suffixes: str) -> list[Path]:
    """Return the project's files (tracked, or new and not ignored), of the given suffixes or of all."""
    if (ROOT / ".git").exists() and shutil.which("git"):
        # safe.directory: the checkout may belong to another user than the one who runs the tests.
        argv = ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(argv, cwd=ROOT, capture_output=True, check=True).stdout.split(b"\0")
        files = [ROOT / os.fsdecode(name) for name in names if name]
    else:  # an unpacked source archive
        hidden = {".venv", ".git", "__pycache__", ".hypothesis", ".mypy_cache", ".pytest_cache", ".ruff_cache"}
        files = [path for path in ROOT.rglob("*") if not hidden & set(path.relative_to(ROOT).parts)]
    return sorted(path for path in files if path.is_file() and (not suffixes or path.suffix in suffixes))


def read_blocks(file: Path) -> list[Block]:
    """Return the fenced blocks of a Markdown file, in order."""
    blocks: list[Block] = []
    start: re.Match[str] | None = None
    first = 0
    lines = file.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, start=1):
        found = _FENCE.match(line)
        if start is None:
            start, first = found, number
        elif line.strip() == start["fence"]:
            indent = len(start["indent"])
            text = "".join(f"{inside[indent:]}\n" for inside in lines[first : number - 1])
            blocks.append(Block(file=file, line=first, language=start["language"], text=text))
            start = None
    return blocks


def read_prose(file: Path) -> Iterator[tuple[int, str]]:
    """Give the lines of a Markdown file that stand outside fenced blocks, with their numbers."""
    start: re.Match[str] | None = None
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        if start is not None:
            if line.strip() == start["fence"]:
                start = None
        elif (found := _FENCE.match(line)) is not None:
            start = found
        else:
            yield number, line


def list_anchors(file: Path) -> set[str]:
    """Return the anchors of a Markdown file's headings, as forges make them."""
    anchors: set[str] = set()
    for _, line in read_prose(file):
        if found := re.match(r"#{1,6} +(.+?) *#*$", line):
            bare = re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", found[1]).lower())
            anchor = bare.replace(" ", "-")
            count = 0
            while (name := f"{anchor}-{count}" if count else anchor) in anchors:
                count += 1
            anchors.add(name)
    return anchors
