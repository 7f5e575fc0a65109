"""Writing all of something, where one call of the kernel may write less. Needs no other module: the driver is small."""

from __future__ import annotations

import os
import select


def write_all(descriptor: int, content: bytes | bytearray | memoryview) -> None:
    """Write all of the content, also if another process has made the descriptor non-blocking."""
    view = memoryview(content)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:
            select.select([], [descriptor], [])


def write_all_at(descriptor: int, content: bytes | memoryview, offset: int) -> None:
    """The same at an offset of a file, whose position stays as it is."""
    view = memoryview(content)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written
