"""The checks, by what they are about. Each module registers its own when it is imported."""

from __future__ import annotations

from corral.testing.check import registered
from corral.testing.checks import (  # noqa: F401 - imported to be registered
    code,
    content,
    exec,  # noqa: A004 - the method of that name is what it checks
    input,  # noqa: A004
    life,
    loops,
    network,
    ports,
    powers,
    process,
    search,
    secrets,
    sessions,
    transfer,
    tree,
    volumes,
)

ALL = registered()
