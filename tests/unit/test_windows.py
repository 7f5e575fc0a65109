"""On Windows, `import corral` and the backends that speak to a service work: nothing there needs modules of Unix."""

import subprocess
import sys

UNIX = ("fcntl", "termios", "resource", "pwd", "grp", "tty", "pty")
MODULES = (
    "corral",
    "corral.client.sync",
    "corral.environment.environment",
    "corral.tools",
    "corral.backends.memory.backend",
    "corral.backends.docker.backend",
    "corral.backends.daytona.backend",
    "corral.cli.run",
    "corral.cli.sandbox",
    "corral.testing",
)


def test_without_the_modules_of_unix_everything_but_the_engine_is_imported() -> None:
    program = f"""
import importlib, sys
sys.modules.update(dict.fromkeys({UNIX}))
for name in {MODULES}:
    importlib.import_module(name)
"""
    ran = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
