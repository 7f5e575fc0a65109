"""`help()` says what the caller gets, for every public name; docs/reference*.md are what it says."""

import inspect

import pytest

from corral.base.files import AsyncFiles
from corral.base.process import AsyncProcess
from corral.client.sandbox import AsyncSandbox
from support.project import ROOT, SOURCE
from support.reference import PAGES, ROOMS, get_text, list_members, list_public, write

BEHIND = (AsyncSandbox, AsyncFiles, AsyncProcess)
"""What an async caller holds."""


def list_docstrings() -> list[tuple[str, str]]:
    public = [entry for room in ROOMS for entry in list_public(room) if callable(entry[1])]
    classes = [value for _, value in public if inspect.isclass(value)]
    found = [(name, get_text(value)) for name, value in public]
    spelled_out = [owner for owner in classes if not getattr(owner, "_is_protocol", False)]  # others: by their kind
    for owner in (*spelled_out, *BEHIND):
        found += [(f"{owner.__name__}.{name}", get_text(member)) for name, member in list_members(owner)]
    return found


def test_every_public_name_has_a_docstring_that_says_something() -> None:
    found = list_docstrings()
    assert len(found) > 150
    assert [name for name, text in found if len(text) < 8 or text.startswith("See ")] == []


def test_what_an_editor_shows_says_something_too() -> None:
    for name in ("client/sandbox", "base/files", "base/process", "client/sync"):
        assert '"""See `' not in (SOURCE / f"{name}.py").read_text(encoding="utf-8"), name


def test_docstrings_of_the_sync_door_name_the_errors() -> None:
    from corral import Files, Sandbox

    assert "WorkdirError" in (Sandbox.exec.__doc__ or "")
    assert "SandboxFileNotFoundError" in (Files.read.__doc__ or "")


@pytest.mark.parametrize("name", PAGES)
def test_reference_page_is_what_the_docstrings_say(name: str) -> None:
    page = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert page == write(PAGES[name]), "run tools/write-reference"
