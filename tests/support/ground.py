"""Runs a test's program on the test ground (`corral.testing.ground`), as root and as an ordinary user.

    answer = ground.run('''
        serve(web, "93.184.215.14", 80, name="example.org")
        with Sandbox(network=["example.org"]) as box:
            tell(output=box.exec("curl -s http://example.org/").stdout)
    ''', user=user)

All of Corral runs there: the library, the launcher and the gate, which therefore takes that namespace for the network
of the host. A ground starts in about 0.2 s and a process more, so a test asserts several things about one.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from corral.testing.ground.enter import make_environment
from support.user import ROOT, OrdinaryUser, _become

PREAMBLE = """\
import json, os, socket, sys, time
from corral import *
from corral.testing.ground import OWN_ADDRESS, OWN_ADDRESS_6, Answer, Ground
from support.stand_ins import *
GROUND = Ground()
NAMES, TOLD = {}, {}
def tell(**values): TOLD.update(values)
def serve(kind, address, port=80, *, name=None, **options):
    if name: NAMES[name] = address; GROUND.set_hosts(NAMES)
    return start(GROUND.listen(address, port), kind, **options)
"""
_END = "\nprint(json.dumps(TOLD), flush=True)\n"


def run(
    program: str,
    *,
    user: OrdinaryUser | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 90.0,
    **values: object,
) -> dict[str, Any]:
    """What a program told by `tell(name=value)`; it begins with the lines of `PREAMBLE`.

    `values` are variables of it, with what `repr` writes. `user` runs it instead of the user of the tests; nobody
    else's variables are passed on. The data folder is new.
    """
    given = "".join(f"{name} = {value!r}\n" for name, value in values.items())
    text = PREAMBLE + given + textwrap.dedent(program) + _END
    with tempfile.TemporaryDirectory(prefix="corral-on-ground-", ignore_cleanup_errors=True) as own:
        folder = user.home if user is not None else Path(own)
        script = folder / "program.py"
        script.write_text(text, encoding="utf-8")
        script.chmod(0o644)
        if user is None:
            path = f"{ROOT / 'src'}:{ROOT / 'tests'}"
            variables = os.environ | {"CORRAL_DATA_DIR": f"{own}/data", "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
            argv = [sys.executable, str(script)]
        else:
            _copy_support(user)
            variables = user._make_env({"CORRAL_DATA_DIR": str(user.home / "data"), "PYTHONUNBUFFERED": "1"})
            argv = [*_become(user.uid), str(user.python), str(script)]
        done = subprocess.run(
            [sys.executable, "-P", "-m", "corral.testing.ground", *argv],
            cwd=folder, env=make_environment((variables | dict(env or {})).items()), stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=timeout,
        )  # fmt: skip
        lines = done.stdout.splitlines()
        assert lines, done.stderr
        assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        answer: dict[str, Any] = json.loads(lines[-1])
        return answer


def _copy_support(user: OrdinaryUser) -> None:
    """The modules of this folder, where the user may read them."""
    target = user.library / "support"
    if not target.is_dir():
        shutil.copytree(Path(__file__).parent, target, ignore=shutil.ignore_patterns("__pycache__"))
        for path in (target, *target.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
