"""The address of the service and the key for it, always from the same source.

Only the source of a key may choose the address that it is sent to: otherwise a file in a downloaded folder could have
the key of the environment sent to an address of its choice. Arguments and the process's variables both come from the
caller and count as one source, in which an argument wins. A file such as `.env` is another source. A key without an
address is for the hosted service.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

from corral.errors import BackendUnavailableError, SpecError

HOSTED = "https://app.daytona.io/api"
"""The address for a key that came without one."""
URL_VARIABLES = ("DAYTONA_API_URL", "DAYTONA_SERVER_URL")
VARIABLES = ("DAYTONA_API_KEY", "DAYTONA_JWT_TOKEN", "DAYTONA_ORGANIZATION_ID", "DAYTONA_TARGET", *URL_VARIABLES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """The address of a service and the credentials for it, from one source."""

    api_key: str | None = field(default=None, repr=False)
    api_url: str | None = None
    target: str | None = None
    organization_id: str | None = None
    jwt_token: str | None = field(default=None, repr=False)
    source: str = "the arguments"
    """The source's name, for messages."""

    @property
    def has_key(self) -> bool:
        """True if there is an API key or a JWT."""
        return bool((self.api_key or "").strip() or self.jwt_token)

    @property
    def url(self) -> str:
        """The URL to use."""
        return (self.api_url or HOSTED).rstrip("/")


def read_address(values: Mapping[str, str], *, source: str) -> Address:
    """The address from one source of `DAYTONA_*` variables."""
    values = {name: value.strip() for name, value in values.items() if name in VARIABLES}
    return Address(
        api_key=values.get("DAYTONA_API_KEY") or None,
        api_url=next((values[name] for name in URL_VARIABLES if values.get(name)), None),
        target=values.get("DAYTONA_TARGET") or None,
        organization_id=values.get("DAYTONA_ORGANIZATION_ID") or None,
        jwt_token=values.get("DAYTONA_JWT_TOKEN") or None,
        source=source,
    )


def fill_from_environment(given: Address) -> Address:
    """The arguments, completed by the process's variables. No file is read."""
    ours = read_address(os.environ, source="the environment")
    if given.has_key:
        ours = replace(ours, api_key=None, jwt_token=None)  # not a second key beside the given one
    return Address(
        api_key=(given.api_key or "").strip() or ours.api_key,
        api_url=(given.api_url or "").strip() or ours.api_url,
        target=given.target or ours.target,
        organization_id=given.organization_id or ours.organization_id,
        jwt_token=given.jwt_token or ours.jwt_token,
        source=given.source,
    )


def check_address(found: Address) -> None:
    """Check what would otherwise look like an unreachable service.

    Raises:
        BackendUnavailableError: a key that can't be sent, or a malformed URL.
    """
    for name, value in (("key", found.api_key), ("JWT token", found.jwt_token)):
        if value is not None and not (value.isascii() and value.isprintable() and " " not in value):
            raise BackendUnavailableError(
                f"the {name} for the Daytona service contains a character that can't be sent",
                hint="remove line breaks, spaces and quotes that were copied with it",
            )
    parts = urlsplit(found.url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BackendUnavailableError(
            f"{found.url!r} is not the URL of a service", hint="for example http://localhost:3986/api"
        )


def choose_address(sources: Sequence[Address]) -> Address | None:
    """The address from the first source with a key; None if no source has a key.

    Raises:
        SpecError: key and URL come from different sources, so it is unknown whether they belong together.
    """
    number = next((number for number, each in enumerate(sources) if each.has_key), None)
    if number is None:
        return None
    chosen = sources[number]
    for place, other in enumerate(sources):
        alone = other.api_url is not None and not other.has_key and other.url != chosen.url
        if alone and (place < number or chosen.api_url is None):
            raise SpecError(
                f"DAYTONA_API_KEY is set in {chosen.source}, but the URL {other.url!r} in {other.source}: "
                "a key is not sent to a URL from another source",
                hint=f"if they belong together, set DAYTONA_API_URL in {chosen.source} too",
            )
    return chosen
