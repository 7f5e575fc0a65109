"""The API reference: public names with their signatures and docstrings, as Markdown."""

import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

WRITTEN = "Written by `tools/write-reference` from the docstrings; a test compares."


@dataclass(frozen=True)
class Page:
    """One page of the reference."""

    head: str
    rooms: dict[str, str]


PAGES = {
    "reference.md": Page(
        f"""# Reference

Every public name, with what `help()` shows of it. {WRITTEN}
`AsyncSandbox` gives sandboxes that have the methods of `Sandbox`, awaited, and `aclose` for `close`; their files,
processes, sessions and terminals likewise. Errors are in [errors.md](errors.md), the tour in [guide.md](guide.md). The
forge is in [reference-forge.md](reference-forge.md), the adapters for agent frameworks are in
[reference-adapters.md](reference-adapters.md).
""",
        {
            "corral": "The front door",
            "corral.tools": "Tools for models",
            "corral.sessions.interpreter.events": "The interpreter",
        },
    ),
    "reference-forge.md": Page(
        f"""# Reference: the forge

Every public name of the forge, with what `help()` shows of it. {WRITTEN}
The tour is in [forge.md](forge.md), judges are explained in [forge-judges.md](forge-judges.md).
""",
        {
            "corral.forge": "Contests",
            "corral.forge.judge": "Judges",
            "corral.forge.dreamfoundry": "The interface of Dream Foundry",
        },
    ),
    "reference-adapters.md": Page(
        f"""# Reference: adapters

Every public name of the adapters for agent frameworks, with what `help()` shows of it, but for names that are the
framework's own. {WRITTEN}
The tours are in [ag2.md](ag2.md) and [pydantic-ai.md](pydantic-ai.md).
""",
        {"corral.adapters.ag2": "AG2", "corral.adapters.pydantic_ai": "Pydantic AI"},
    ),
}
ROOMS = [room for page in PAGES.values() for room in page.rooms]


def list_public(room: str) -> list[tuple[str, Any]]:
    """The names of a room that are no errors, with what they are."""
    module = importlib.import_module(room)
    names = getattr(module, "__all__", None) or [
        name for name, value in vars(module).items() if getattr(value, "__module__", "") == room
    ]
    found = [(name, getattr(module, name)) for name in names if not name.startswith("_")]
    return [
        (name, value)
        for name, value in found
        if not (isinstance(value, type) and issubclass(value, Exception))
        and getattr(value, "__module__", room).startswith("corral")
    ]


def list_members(value: type) -> Iterator[tuple[str, Any]]:
    """The public methods and properties of a class of ours, its bases' included."""
    seen = set()
    for owner in value.__mro__:
        if not owner.__module__.startswith("corral"):
            continue
        for name, member in vars(owner).items():
            shown = inspect.isroutine(member) or isinstance(member, property | classmethod | staticmethod)
            if shown and not name.startswith("_") and name not in seen:
                seen.add(name)
                yield name, member


def get_text(value: Any) -> str:
    """The docstring, as `help()` has it."""
    if isinstance(value, classmethod | staticmethod):
        value = value.__func__
    return inspect.getdoc(value) or ""


def show_signature(value: Any) -> str:
    """Parameters with their types and defaults. Defaults that are no plain values show as `…`."""
    if isinstance(value, classmethod | staticmethod):
        value = value.__func__
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return "()"
    words, starred = [], False
    for parameter in signature.parameters.values():
        if parameter.name in ("self", "cls"):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            words.append("*")
            starred = True
        starred = starred or parameter.kind is parameter.VAR_POSITIONAL
        words.append(_show_parameter(parameter))
    given = signature.return_annotation
    back = "" if given is inspect.Signature.empty or isinstance(value, type) else f" -> {_show_type(given)}"
    return f"({', '.join(words)}){back}"


def _show_parameter(parameter: inspect.Parameter) -> str:
    text = parameter.name
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        text = ("*" if parameter.kind is parameter.VAR_POSITIONAL else "**") + text
    if parameter.annotation is not parameter.empty:
        text += f": {_show_type(parameter.annotation)}"
    if parameter.default is not parameter.empty:
        plain = isinstance(parameter.default, str | int | float | bool | bytes | tuple | None)
        default = repr(parameter.default) if plain else "…"
        text += f" = {default}"
    return text


def _show_type(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else str(inspect.formatannotation(annotation))
    return re.sub(r"\b(?:corral|collections|typing)\.[\w.]*\.(?=\w)|\btyping\.", "", text)


def write(page: Page) -> str:
    """A whole page."""
    lines = [page.head]
    for room, title in page.rooms.items():
        lines.append(f"## {title}: `{room}`\n")
        for name, value in sorted(list_public(room), key=lambda entry: entry[0].lower()):
            lines += _write_entry(name, value)
    return "\n".join(lines).rstrip() + "\n"


def _write_entry(name: str, value: Any) -> list[str]:
    if not inspect.isclass(value):
        signature = show_signature(value) if callable(value) else ""
        return [f"### `{name}{signature}`\n", f"{_indent(get_text(value))}\n"] if callable(value) else []
    lines = [f"### `{name}`\n", f"{_indent(get_text(value))}\n"]
    if is_dataclass(value):
        shown = [f"`{field.name}: {_show_type(field.type)}`" for field in fields(value)]
        lines.append(f"Fields: {', '.join(shown)}.\n")
    else:
        lines.append(f"`{name}{show_signature(value)}`\n")
    for each, member in list_members(value):
        is_property = isinstance(member, property)
        lines.append(f"- `{each}{'' if is_property else show_signature(member)}`\n")
        if text := get_text(member):
            lines.append("\n".join(f"  {line}".rstrip() for line in _indent(text).splitlines()) + "\n")
    return lines


def _indent(text: str) -> str:
    """Lists of errors become lists; everything else stays."""
    return re.sub(r"^ {4}(?=\S)", "- ", re.sub(r"^(Raises:)$", r"\1\n", text, flags=re.MULTILINE), flags=re.MULTILINE)


if __name__ == "__main__":
    for file, page in PAGES.items():
        Path(sys.argv[1], file).write_text(write(page), encoding="utf-8")
