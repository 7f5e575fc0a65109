"""What is sent inside, as text. None of it is imported on the host."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import corral.inside.interpreter

_INSIDE = Path(corral.inside.interpreter.__file__).parent
_PARTS = ("streams.py", "shown.py", "driver.py")
_OURS = "from corral.inside.interpreter."
_FUTURE = "from __future__ import annotations\n"


@cache
def driver_text() -> bytes:
    """The driver as one file that stands alone: its parts one after the other, without their imports of each other."""
    lines = [_FUTURE]
    for part in _PARTS:
        text = (_INSIDE / part).read_text(encoding="utf-8")
        lines += [line for line in text.splitlines(keepends=True) if line != _FUTURE and not line.startswith(_OURS)]
    return "".join(lines).encode()


@cache
def charts_text() -> bytes:
    """The reader of figures, for the driver and for programs that run once."""
    return (_INSIDE / "charts.py").read_bytes()
