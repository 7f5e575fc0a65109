"""The fake that the tests of environments share."""

from collections.abc import Iterator

import pytest

from support.slow import Slow


@pytest.fixture
def backend() -> Iterator[Slow]:
    made = Slow()
    yield made
    assert made.count_living() == 0, "a sandbox was left behind"
