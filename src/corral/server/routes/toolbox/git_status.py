"""What git prints, parsed: the state of a working tree, commits, and settings. Pure, and suspicious of its input."""

from __future__ import annotations

from collections.abc import Iterator

from corral.server.faults import bad_request
from corral.server.wire.git import FileStatus, GitCommitInfo, GitRemote, GitStatus, StatusWord

LOG_FORMAT = "%H%x1f%an%x1f%ae%x1f%aI%x1f%B"

_MOST_ENTRIES = 20_000
"""In what git prints: all others wait while it is parsed. With names of usual length, its output is bounded sooner."""
ENTRY_BYTES = 256
"""The memory of a parsed entry, besides the output itself."""

_WORDS: dict[str, StatusWord] = {
    ".": "Unmodified",
    "M": "Modified",
    "T": "Modified",
    "A": "Added",
    "D": "Deleted",
    "R": "Renamed",
    "C": "Copied",
    "U": "Updated but unmerged",
    "?": "Untracked",
}


def split_entries(text: str, separator: str = "\0") -> list[str]:
    """The entries that git prints; the program may be another one that the sandbox calls git.

    Raises:
        Fault: 400, there are too many.
    """
    if text.count(separator) > _MOST_ENTRIES:
        raise bad_request(f"git printed more than {_MOST_ENTRIES} entries, which is too many for one response")
    return text.split(separator)


def parse_status(text: str) -> GitStatus:
    """The output of `git status --porcelain=v2 --branch -z`."""
    heads: dict[str, str] = {}
    files: list[FileStatus] = []
    fields = iter(split_entries(text))
    for line in fields:
        kind = line[:1]
        if kind == "#":
            name, _, value = line[2:].partition(" ")
            heads[name] = value
        elif kind:
            files.extend(_parse_file(line, fields))
    head = heads.get("branch.head", "")
    detached = head == "(detached)"
    ahead, behind = _parse_distance(heads.get("branch.ab", ""))
    return GitStatus(
        current_branch="HEAD" if detached else head,
        file_status=files,
        ahead=ahead,
        behind=behind,
        branch_published="branch.ab" in heads,
        detached=detached,
        upstream=heads.get("branch.upstream"),
    )


def _parse_file(line: str, fields: Iterator[str]) -> Iterator[FileStatus]:
    """One entry; that of a renamed or copied file takes one more field, its former name."""
    kind = line[0]
    if kind == "?":
        yield FileStatus(name=line[2:], staging="Untracked", worktree="Untracked", extra="")
        return
    columns = {"1": 8, "2": 9, "u": 10}.get(kind)
    if columns is None:
        return  # "!" is an ignored file; others are unknown
    words = line.split(" ", columns)
    if len(words) != columns + 1 or len(words[1]) != 2:
        return
    staging, worktree = (_WORDS.get(letter, "Modified") for letter in words[1])
    if kind == "u":
        staging = worktree = "Updated but unmerged"
    extra = next(fields, "") if kind == "2" else ""
    yield FileStatus(name=words[-1], staging=staging, worktree=worktree, extra=extra)


def _parse_distance(text: str) -> tuple[int, int]:
    words = text.split()
    if len(words) != 2 or not all(word[1:].isdigit() for word in words):
        return 0, 0
    return int(words[0][1:]), int(words[1][1:])


def parse_log(text: str) -> list[GitCommitInfo]:
    """The output of `git log -z` in `LOG_FORMAT`."""
    commits = []
    for entry in split_entries(text):
        words = entry.split("\x1f", 4)
        if len(words) == 5:
            name, author, email, moment, message = words
            commits.append(
                GitCommitInfo(hash=name, author=author, email=email, timestamp=moment, message=message.rstrip("\n"))
            )
    return commits


def parse_remotes(text: str) -> list[GitRemote]:
    r"""The output of `git config -z --get-regexp '^remote\..*\.url$'`; of several URLs, a remote's first."""
    remotes: dict[str, str] = {}
    for entry in split_entries(text):
        key, _, value = entry.partition("\n")
        if key.startswith("remote.") and key.endswith(".url"):
            remotes.setdefault(key[len("remote.") : -len(".url")], value)
    return [GitRemote(name=name, url=url) for name, url in remotes.items()]
