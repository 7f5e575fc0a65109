"""The texts of the interpreter that are sent inside. They are not imported on the host."""

from __future__ import annotations

from corral.inside.bundle import bundle

DRIVER_PARTS = ("interpreter.streams", "interpreter.shown", "interpreter.driver")


def driver_text() -> bytes:
    """The driver as one self-contained file."""
    return bundle(*DRIVER_PARTS)


def charts_text() -> bytes:
    """The reader of figures, for the driver and for `run_code`."""
    return bundle("interpreter.charts")
