"""Tables on the pages are those of the code (errors, languages, layers, probes); pages keep to the project's words."""

import re
import tomllib
from pathlib import Path

from corral.errors import CorralError, all_error_classes
from corral.languages import find_language, language_names
from corral.testing.hostile import ALL, WINDOW
from support.project import ROOT, list_files, read_prose

# One word, one meaning: what stands on the left is called otherwise here.
OTHER_WORDS = {"jail": "sandbox", "jails": "sandboxes", "provider": "backend", "providers": "backends"}
NOUNS = ("Spec", "Sandbox", "Backend", "Environment", "Tool", "Engine")


def read_table(page: Path, *, first: str) -> list[list[str]]:
    """Return the rows of the table whose first heading is `first`, cell by cell."""
    rows: list[list[str]] = []
    for _, line in read_prose(page):
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")] if line.startswith("|") else []
        if rows and not cells:
            break
        if cells and (rows or cells[0] == first):
            rows.append(cells)
    assert len(rows) > 2, f"{page.name} has no table that begins with {first!r}"
    return rows[2:]


def list_code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_errors_page_has_every_error() -> None:
    rows = read_table(ROOT / "docs" / "errors.md", first="error")
    ours = [error for error in all_error_classes() if error.__module__ == CorralError.__module__]
    assert sorted(list_code(row[0])[0] for row in rows) == sorted(error.__name__ for error in ours)
    real = {error.__name__: ([base.__name__ for base in error.__bases__], error.code) for error in ours}
    written = {list_code(row[0])[0]: (list_code(row[1]), list_code(row[2])[0]) for row in rows}
    assert written == real
    assert [row[0] for row in rows if len(row) != 5 or not all(row)] == []


def test_errors_page_says_which_may_be_tried_again() -> None:
    text = " ".join((ROOT / "docs" / "errors.md").read_text(encoding="utf-8").split())
    again = [error.__name__ for error in all_error_classes() if error.retryable]
    assert f"(`{'`, `'.join(again)}` alone)" in text


def test_languages_page_has_every_language() -> None:
    rows = read_table(ROOT / "docs" / "languages.md", first="language")
    assert [list_code(row[0])[0] for row in rows] == language_names()
    for row in rows:
        language = find_language(list_code(row[0])[0])
        assert list_code(row[1]) == list(language.aliases)
        assert list_code(row[2]) == list(dict.fromkeys(runtime.program for runtime in language.runtimes))
        assert row[3] == language.hint


def test_architecture_defines_the_nouns_once() -> None:
    rows = read_table(ROOT / "ARCHITECTURE.md", first="noun")
    assert [row[0].strip("*") for row in rows] == list(NOUNS)


def test_architecture_has_the_layers_in_order() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    (flow,) = [contract for contract in contracts if contract["name"] == "Flow goes down"]
    real = [sorted(re.findall(r"\w+", layer)) for layer in flow["layers"]]
    rows = read_table(ROOT / "ARCHITECTURE.md", first="room")
    assert [sorted(list_code(row[0])) for row in rows] == real


def test_contributing_names_every_test_folder() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = re.findall(r"^\| `tests/(\w+)` \|", text, re.MULTILINE)
    tests = ROOT / "tests"
    folders = {path.relative_to(tests).parts[0] for path in list_files() if tests in path.parent.parents}
    assert sorted(named) == sorted(folders)


def test_security_names_probes_that_exist() -> None:
    rows = read_table(ROOT / "SECURITY.md", first="defence")
    named = {name for row in rows for name in list_code(row[3])}
    assert named
    tests = {name for name in named if name.startswith("tests/") and (ROOT / name).is_file()}
    assert sorted(named - tests - {probe.name for probe in (*ALL, *WINDOW)}) == []


def test_pages_keep_to_our_words() -> None:
    found: list[str] = []
    for page in list_files(".md"):
        for number, line in read_prose(page):
            words = re.findall(r"[a-z]+", re.sub(r"`[^`]*`", "", line).lower())
            where = f"{page.relative_to(ROOT)}:{number}"
            found += [f"{where}: {word!r}, say {OTHER_WORDS[word]!r}" for word in words if word in OTHER_WORDS]
    assert found == []
