"""Programs on the test ground with an index of packages that has a login, for which pip is configured."""

import textwrap
from typing import Any

from support import ground

BEGIN = """
os.environ |= {
    "PIP_INDEX_URL": "http://user:s3cret@pip.example.org/simple",
    "PIP_TRUSTED_HOST": "pip.example.org files.example.org slow.example.org",
    "PIP_CONFIG_FILE": "/dev/null",
}
from pathlib import Path
from support.wheels import make_source, make_wheel
folder = Path.cwd() / "packages"
make_wheel(folder, "hello")
INDEX = serve(pip_index, "93.184.215.20", name="pip.example.org", folder=folder, login="user:s3cret")

def attempt(*packages, name=None, **more):
    "What the package says, or the error."
    try:
        with Sandbox(packages=packages, **more) as box:
            return box.run_code(f"import {name or packages[0]} as it; print(it.version)").output.strip()
    except CorralError as error:
        return [type(error).__name__, error.message, error.hint]
"""


def run_with_index(program: str, **more: Any) -> dict[str, Any]:
    """As `ground.run`; the program begins with the lines of `BEGIN`: the package `hello` 1.0 is at the index."""
    return ground.run(BEGIN + textwrap.dedent(program), **more)
