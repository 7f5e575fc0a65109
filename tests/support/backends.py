"""Which checks a backend that speaks to a service goes through in every run, and which with `make backends`."""

import pytest

from corral.testing.check import Check


def set_apart(item: Check) -> list[pytest.MarkDecorator]:
    """The ten rules of the contract are tried always; the details of single methods take minutes more."""
    return [] if item.promise.isdigit() else [pytest.mark.backends]
