"""Which Daytona service to use: from the environment or from `.env`, with Daytona's and Dream Foundry's variables.

Key and address come from one of the two, never from both: see `corral.backends.daytona.address`.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping

from corral.backends.daytona.address import VARIABLES, Address, choose_address, read_address
from corral.client.registry import make_backend
from corral.errors import SpecError
from corral.forge.dotenv import read_dotenv
from corral.protocol import Backend

DEFAULT_BASE_URL = "https://api.daytona.io/v1"
"""What `get_daytona_config` gives if no service is configured. No service is there, so no request goes to it."""

BASE_URL = "DAYTONA_BASE_URL"
NAMES = frozenset({*VARIABLES, BASE_URL})
"""The only names that are read from a `.env`."""
NOT_CONFIGURED = "Daytona not configured"
NO_SDK = "Daytona SDK not installed"
DOTENV = ".env of this folder"
_PLACEHOLDER = "your_"


def find_service() -> Address | None:
    """The service, and the key for it; None if there is no key.

    Raises:
        SpecError: the key is in the environment and the address in `.env`, or the other way round.
    """
    return choose_address(_read_sources())


def describe_service() -> str:
    """A remark with the address, if it comes from `.env`: that file may come from a stranger."""
    found = _find()
    return f"Daytona at {found.url!r}, with the key from {DOTENV}" if found and found.source == DOTENV else ""


def open_service() -> Backend:
    """A backend for the service, which the caller closes. Key and address come from the same source.

    Raises:
        SpecError: as `find_service`, or there is no key.
    """
    found = find_service()
    if found is None:
        raise SpecError("no API key for the Daytona service", hint="set DAYTONA_API_KEY, or put it into .env")
    return make_backend(
        "daytona", api_key=found.api_key, api_url=found.url, target=found.target,
        organization_id=found.organization_id, jwt_token=found.jwt_token,
    )  # fmt: skip


def get_daytona_config() -> tuple[str | None, str | None]:
    """(api_key, base_url). A key that begins with `your_` is a placeholder from a template: None.

    DAYTONA_API_URL wins over DAYTONA_BASE_URL. Both may be in `.env` of the working folder. What is really set wins,
    and key and address are then both from there; there is no key where they would come from two places.
    """
    found = _find()
    return (found.api_key if found else None), find_service_url() or DEFAULT_BASE_URL


def is_daytona_configured() -> bool:
    """Whether there is a key."""
    return _find() is not None


def find_service_url() -> str | None:
    """The address that the SDK gets; None: its default."""
    found = _find()
    if found is not None:
        return found.api_url
    return next((each.api_url for each in _read_sources() if each.api_url), None)


def is_sdk_installed() -> bool:
    """Whether the package `daytona` is installed."""
    try:
        return importlib.util.find_spec("daytona") is not None
    except (ImportError, ValueError):
        return False


def find_lack() -> str | None:
    """Why the service can't be used, in Dream Foundry's words; None if it can."""
    try:
        if find_service() is None:
            return NOT_CONFIGURED
    except SpecError as error:
        return f"{NOT_CONFIGURED}: {error.message}"
    return None if is_sdk_installed() else NO_SDK


def _find() -> Address | None:
    try:
        return find_service()
    except SpecError:
        return None


def _read_sources() -> tuple[Address, ...]:
    return (
        _read({name: os.environ[name] for name in NAMES if name in os.environ}, source="the environment"),
        _read(read_dotenv(NAMES), source=DOTENV),
    )


def _read(values: Mapping[str, str], *, source: str) -> Address:
    told = {name: value.strip() for name, value in values.items()}
    told = {name: value for name, value in told.items() if value and not value.lower().startswith(_PLACEHOLDER)}
    base = told.pop(BASE_URL, "")
    if base and base.rstrip("/") != DEFAULT_BASE_URL:
        told.setdefault("DAYTONA_API_URL", base)
    return read_address(told, source=source)
