"""Valid requirements of Python packages: a name, extras, versions and a marker. Never a URL, path or option.

pip builds whatever a URL or a path leads to, on the host, even with wheels only. So requirements are parsed here, by
the library that pip uses as well, and only the canonical form is passed on. The copy inside pip may be older and parse
differently, so pip never parses the original text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING

from corral.errors import SpecError

if TYPE_CHECKING:
    from packaging.requirements import Requirement

_MAX_BYTES = 64 * 1024
MAX_PACKAGES = 256
_MAX_LENGTH = 1000  # markers of real packages reach some hundred characters
_MAX_PARENTHESES = 20
_SHOWN_LENGTH = 100
_FILES = (".whl", ".zip", ".tar", ".gz", ".tgz", ".bz2", ".tbz", ".xz", ".txz", ".lz", ".lzma", ".tlz", ".egg")


def check_packages(packages: Iterable[str]) -> tuple[str, ...]:
    """Each in its canonical form: `Zope.Interface >= 6` becomes `zope-interface>=6`.

    Raises:
        SpecError: not a list, too many, or one that is more than a name, extras, versions and a marker.
    """
    if isinstance(packages, str | bytes | Mapping) or not isinstance(packages, Iterable):
        raise SpecError(
            f"packages must be a list, not {type(packages).__name__}: {_shorten(packages)}",
            hint="for example packages=['numpy']",
        )
    given = tuple(islice(packages, MAX_PACKAGES + 1))
    if len(given) > MAX_PACKAGES:
        raise SpecError(
            f"packages= has more than {MAX_PACKAGES} items", hint="name fewer; dependencies are installed too"
        )
    size = sum(len(package.encode("utf-8", "surrogatepass")) for package in given if isinstance(package, str))
    if size > _MAX_BYTES:
        raise SpecError(f"packages: {size} bytes exceed the limit of {_MAX_BYTES}", hint="name fewer")
    return tuple(str(check_named(parse_requirement(package))) for package in given)


def parse_requirement(text: str) -> Requirement:
    """A requirement as pip reads it, which may still contain a URL.

    Raises:
        SpecError: malformed.
    """
    # Imported here, because few sandboxes need it, and it takes longer than the whole of `import corral`.
    from packaging.requirements import InvalidRequirement, Requirement

    # The parser accepts every kind of white space, and text after a line end could be an option for pip.
    if not isinstance(text, str) or len(text) > _MAX_LENGTH or not (text.isascii() and text.isprintable()):
        raise _refuse(text)
    if text.count("(") > _MAX_PARENTHESES:  # it calls itself for each
        raise _refuse(text)
    try:
        return Requirement(text)
    except (InvalidRequirement, RecursionError) as error:
        raise _refuse(text) from error


def check_named(requirement: Requirement) -> Requirement:
    """The same with name and version only, in canonical form.

    Raises:
        SpecError: a URL, a file, or `===`, which compares any text, paths too.
    """
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    if (
        requirement.url is not None
        or is_file_name(requirement.name)
        or any(each.operator == "===" or is_file_name(each.version) for each in requirement.specifier)
    ):
        raise _refuse(str(requirement))
    named = Requirement(canonicalize_name(requirement.name))
    named.extras = {canonicalize_name(extra) for extra in requirement.extras}
    named.specifier = requirement.specifier
    named.marker = requirement.marker
    return named


def is_file_name(text: str) -> bool:
    """True if pip would take a requirement with this ending for a file: `x.zip`, but `x==1.0+cpu.zip` too."""
    return text.lower().endswith(_FILES)


def _refuse(text: object) -> SpecError:
    return SpecError(
        f"{_shorten(text)} is not a package name",
        hint="use a name and versions, such as 'numpy>=2'; URLs, paths and options are not accepted",
    )


def _shorten(value: object) -> str:
    text = repr(value[:_SHOWN_LENGTH] if isinstance(value, str | bytes) else value)
    return text if len(text) <= 2 * _SHOWN_LENGTH else f"{text[: 2 * _SHOWN_LENGTH]}…"
