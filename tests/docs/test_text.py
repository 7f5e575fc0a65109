"""Links lead somewhere, and the project's text names no machine and no package index."""

import re
from pathlib import Path

import pytest

from support.project import ROOT, list_anchors, list_files, read_prose

PROSE = [(page, number, line) for page in list_files(".md") for number, line in read_prose(page)]

# Locks and docs work with whatever index a reader's tools are set to. Written so that this file names none either.
INDEX_HOST = re.compile(r"\b(?:pypi|pythonhosted|npmjs|yarnpkg|jsr)\.(?:org|com|io)\b", re.IGNORECASE)

# A folder of a real machine. Paths inside a sandbox (/home/daytona, /workspace) are ours, and hostile programs may
# try for /root and for the homes of invented people.
MACHINE_PATH = re.compile(
    r"(?<![\w.~/-])/(?:work|Users|mnt|root/\.pyenv|home/(?!(?:daytona|user|alice|nobody)\b)[a-z_]\w*)/[\w.]"
)

LOCK_OPTIONS = re.compile(r"^\s*(?:-[if]|--(?:extra-)?index-url|--find-links|--trusted-host)\b|://", re.MULTILINE)


def find_lines(pattern: re.Pattern[str], files: list[Path]) -> list[str]:
    found: list[str] = []
    for path in files:
        for number, line in enumerate(path.read_bytes().decode("utf-8", errors="replace").splitlines(), start=1):
            if pattern.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}")
    return found


def test_no_file_names_a_package_index() -> None:
    assert find_lines(INDEX_HOST, list_files()) == []


def test_no_file_names_a_folder_of_somebodys_machine() -> None:
    assert find_lines(MACHINE_PATH, list_files()) == []


@pytest.mark.parametrize("name", ["run", "dev", "installer"])
def test_lock_is_hashed_and_names_no_place(name: str) -> None:
    text = (ROOT / "requirements" / f"{name}.lock").read_text(encoding="utf-8")
    entries = re.split(r"^(?=[A-Za-z])", text, flags=re.MULTILINE)
    assert LOCK_OPTIONS.search(text) is None
    assert len(entries) > 1
    for entry in entries[1:] if not entries[0].strip() else entries:
        assert re.match(r"[\w.-]+==[\w.]+", entry), entry
        assert "--hash=sha256:" in entry, entry


def test_links_lead_somewhere() -> None:
    broken: list[str] = []
    for page, number, line in PROSE:
        for target in re.findall(r"\]\(<?([^)\s>]+)", re.sub(r"`[^`]*`", "", line)):
            if re.match(r"[a-z]+:", target):
                continue  # the web is not ours to test
            name, _, anchor = target.partition("#")
            file = (page.parent / name).resolve() if name else page
            if not file.exists() or (anchor and file.suffix == ".md" and anchor not in list_anchors(file)):
                broken.append(f"{page.relative_to(ROOT)}:{number}: {target}")
    assert broken == []


def test_files_that_are_named_exist() -> None:
    missing: list[str] = []
    for page, number, line in PROSE:
        named = re.findall(r"`((?:src|tests|tools|docs|examples|requirements)/[\w./-]*)`", line)
        missing += [f"{page.relative_to(ROOT)}:{number}: {name}" for name in named if not (ROOT / name).exists()]
    assert missing == []
