"""Testing your own code without a sandbox: the memory backend is a fake that runs nothing and records every call."""

import re

from corral import Sandbox
from corral.backends.memory import MemoryBackend


def review(box: Sandbox, source: str) -> str:
    """The code under test: it writes a file, runs a linter on it, and returns the result."""
    box.files.write("change.py", source)
    result = box.exec("ruff check change.py", timeout=30)
    return "fine" if result.ok else f"{len(result.stdout.splitlines())} remarks"


backend = MemoryBackend()
backend.reply("ruff check change.py", stdout="change.py:1: unused import\n", exit_code=1, times=1)
backend.reply(re.compile("^ruff "), stdout="")

with Sandbox(backend=backend) as box:
    assert review(box, "import os\n") == "1 remarks"
    assert review(box, "") == "fine"
    assert box.files.read_text("change.py") == ""

assert [call.text for call in backend.calls] == ["ruff check change.py"] * 2
print("both paths were taken, and", len(backend.calls), "calls were recorded; nothing was executed")
