"""Which Daytona service to use: from the environment and from `.env`, with the variables of both worlds."""

from __future__ import annotations

import importlib.util

from corral.forge.dotenv import read_settings

DEFAULT_BASE_URL = "https://api.daytona.io/v1"
"""What is said where nobody has named a service. It is nobody's address, so it is never sent."""

NO_SDK = "Daytona SDK not installed"
_PLACEHOLDER = "your_"


def get_daytona_config() -> tuple[str | None, str | None]:
    """(api_key, base_url). A key that begins with `your_` is a placeholder from a template: None.

    DAYTONA_API_URL wins over DAYTONA_BASE_URL. Both may be in `.env` of the working folder; what is really set wins.
    """
    settings = read_settings()
    url = _real(settings.get("DAYTONA_API_URL")) or _real(settings.get("DAYTONA_BASE_URL")) or DEFAULT_BASE_URL
    return _real(settings.get("DAYTONA_API_KEY")), url


def is_daytona_configured() -> bool:
    """Whether there is a key."""
    return get_daytona_config()[0] is not None


def find_service_url() -> str | None:
    """The address to send; None: the SDK's own."""
    settings = read_settings()
    if url := _real(settings.get("DAYTONA_API_URL")):
        return url
    url = _real(settings.get("DAYTONA_BASE_URL"))
    return None if url is None or url.rstrip("/") == DEFAULT_BASE_URL else url


def is_sdk_installed() -> bool:
    """Whether the vendor's package can be found."""
    try:
        return importlib.util.find_spec("daytona") is not None
    except (ImportError, ValueError):
        return False


def find_lack() -> str | None:
    """Why it can't be used, in the known words; None if it can."""
    if not is_daytona_configured():
        return "Daytona not configured"
    return None if is_sdk_installed() else NO_SDK


def _real(value: str | None) -> str | None:
    value = (value or "").strip()
    return value if value and not value.lower().startswith(_PLACEHOLDER) else None
