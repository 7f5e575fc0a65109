"""Modules of this package as text, for a Python that has no Corral."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

_HERE = Path(__file__).parent
_FUTURE = "from __future__ import annotations\n"
_OURS = re.compile(r"^from corral\.[^\n]+ import (\([^)]*\)|[^\n]*)\n", re.MULTILINE)


@lru_cache(maxsize=None)
def bundle(*parts: str) -> bytes:
    """One self-contained text: the parts one after the other, without their imports of each other.

    Each part is a module's name below `corral.inside`, and comes after those that it imports. All share one namespace,
    so no two may define the same name; a test checks that.
    """
    paths = [_HERE / f"{part.replace('.', '/')}.py" for part in parts]
    texts = [path.read_text(encoding="utf-8").replace(_FUTURE, "") for path in paths]
    return (_FUTURE + "".join(_OURS.sub("", text) for text in texts)).encode()
