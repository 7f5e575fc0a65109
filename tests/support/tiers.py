"""Which tests belong to which command: `make test`, `make check`, `make check-all`.

A test without one of the marks of pyproject.toml is in all three. `check` is for what `make check` runs besides:
another user, another backend or another client for what one pass has shown already. Most tests get it here, by what
they need.
"""

import os
from typing import Any

import pytest

from corral.testing.check import Check

LONG = ("backends", "prove", "clients", "soak")
"""Marks of what only `make check-all` runs."""
OUTSIDE = ("needs_docker", "needs_network")
"""Tests that need a separate daemon or a third-party server."""


def belongs_to_check(item: pytest.Item) -> bool:
    """True if the test is a further pass, which `make test` leaves out."""
    marks = {mark.name for mark in item.iter_markers()}
    if marks & {"check", *LONG}:
        return False
    # Root's run has root's pass. What only an ordinary user does is for the run of an ordinary user, or a second pass.
    second = os.geteuid() == 0 and "needs_user" in marks and "needs_root" not in marks
    return second or bool(marks.intersection(OUTSIDE))


def further(*values: object) -> Any:
    """An example of a parametrized test that shows much the same as another one: for `make check`."""
    return pytest.param(*values, marks=pytest.mark.check)


def further_backend(item: Check) -> list[pytest.MarkDecorator]:
    """The conformance suite on a backend other than the embedded one and the fake, which are tried whole in every run.

    Whether it keeps the ten rules is tried in every `make check`; the details of single methods, which are mostly
    written once above all backends, in `make check-all`.
    """
    return [pytest.mark.check] if item.promise.isdigit() else [pytest.mark.backends]
