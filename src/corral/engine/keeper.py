from __future__ import annotations
from typing import Any, NoReturn
import os
from corral.engine.box import Box
from corral.engine.state import DataFolder
def become_keeper(box: Box, data: DataFolder, info: dict[str, Any]) -> NoReturn:
    os._exit(0)
