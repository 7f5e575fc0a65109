"""A sandbox that outlives the program that created it, found again by name."""

import os
import subprocess
import sys

from corral import Sandbox

NAME = f"example-{os.getpid()}"
MAKER = """
import sys
from corral import Sandbox

box = Sandbox()
box.files.write("counter", "1")
box.detach(name=sys.argv[1], lifetime_seconds=120)  # deleted after 120 seconds at the latest
"""

subprocess.run([sys.executable, "-c", MAKER, NAME], check=True)  # this program has ended

box = Sandbox.connect(NAME)
print("found:", box.info().name, "with the counter at", box.files.read_text("counter"))
box.exec("echo 2 > counter", check=True)
box.close()  # disconnects; the sandbox keeps running

again = Sandbox.connect(NAME)
print("again:", again.files.read_text("counter").strip(), f"and {again.info().deadline:.0f} s left")
again.kill()
print("gone: ", NAME not in [info.name for info in Sandbox.list()])
