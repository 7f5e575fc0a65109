"""What the report and the live page share: their files, text made harmless, and artifacts as they may be shown."""

from __future__ import annotations

from functools import cache
from importlib import resources


@cache
def read_asset(package: str, name: str) -> str:
    """The text of one of our own files, such as `page.css` of `corral.forge.pages`."""
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")
