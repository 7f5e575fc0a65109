"""What git prints, parsed."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.server.faults import Fault
from corral.server.routes.toolbox.git_status import parse_log, parse_remotes, parse_status

HASH = "0" * 40


def test_a_status_has_branch_distance_and_files() -> None:
    lines = [
        "# branch.oid " + HASH,
        "# branch.head main",
        "# branch.upstream origin/main",
        "# branch.ab +2 -3",
        f"1 M. N... 100644 100644 100644 {HASH} {HASH} staged file.txt",
        f"1 .D N... 100644 100644 000000 {HASH} {HASH} deleted.txt",
        f"1 AM N... 000000 100644 100644 {HASH} {HASH} added.txt",
        f"2 R. N... 100644 100644 100644 {HASH} {HASH} R100 new name",
        "old name",
        f"u UU N... 100644 100644 100644 100644 {HASH} {HASH} {HASH} fought over.txt",
        "? not known.txt",
        "! ignored.txt",
        "",
    ]
    status = parse_status("\0".join(lines))
    assert (status.current_branch, status.upstream, status.ahead, status.behind) == ("main", "origin/main", 2, 3)
    assert status.branch_published
    assert not status.detached
    assert [(file.name, file.staging, file.worktree, file.extra) for file in status.file_status] == [
        ("staged file.txt", "Modified", "Unmodified", ""),
        ("deleted.txt", "Unmodified", "Deleted", ""),
        ("added.txt", "Added", "Modified", ""),
        ("new name", "Renamed", "Unmodified", "old name"),
        ("fought over.txt", "Updated but unmerged", "Updated but unmerged", ""),
        ("not known.txt", "Untracked", "Untracked", ""),
    ]


def test_a_detached_head_is_called_head() -> None:
    status = parse_status(f"# branch.oid {HASH}\0# branch.head (detached)\0")
    assert (status.current_branch, status.detached, status.branch_published) == ("HEAD", True, False)


@given(st.text(alphabet="12u?!# \0ab.MADRU+-0"))
def test_nothing_that_is_printed_breaks_the_parser(text: str) -> None:
    parse_status(text)
    parse_log(text)
    parse_remotes(text)


def test_commits_are_told_with_their_whole_message() -> None:
    log = f"{HASH}\x1fAnn\x1fa@b\x1f2026-01-02T03:04:05+00:00\x1fone\n\ntwo\n\0"
    (commit,) = parse_log(log)
    assert (commit.hash, commit.author, commit.email) == (HASH, "Ann", "a@b")
    assert commit.message == "one\n\ntwo"


def test_remotes_are_told_with_their_first_url() -> None:
    text = "remote.origin.url\nhttps://a/b\0remote.origin.url\nhttps://c/d\0remote.a.b.url\n/x y\0"
    assert [(remote.name, remote.url) for remote in parse_remotes(text)] == [
        ("origin", "https://a/b"),
        ("a.b", "/x y"),
    ]


@pytest.mark.parametrize("parse", [parse_status, parse_log, parse_remotes])
def test_a_git_of_the_sandboxs_own_makes_no_millions_of_entries(parse: Callable[[str], object]) -> None:
    with pytest.raises(Fault, match="more than 20000 entries"):
        parse("?\0" * 20_001)
