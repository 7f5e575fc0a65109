"""What is sent inside, as text. None of it is imported on the host."""

from __future__ import annotations

from corral.inside.bundle import bundle

DRIVER_PARTS = ("interpreter.streams", "interpreter.shown", "interpreter.driver")


def driver_text() -> bytes:
    """The driver as one file that stands alone."""
    return bundle(*DRIVER_PARTS)


def charts_text() -> bytes:
    """The reader of figures, for the driver and for programs that run once."""
    return bundle("interpreter.charts")
