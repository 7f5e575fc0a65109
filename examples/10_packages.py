"""Python packages without a network inside: from your virtual environment, or downloaded by Corral.

Needs: network
"""

import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

from corral import Sandbox

# Downloaded once on the host (wheels only), cached, and mounted read-only.
with Sandbox(packages=["iniconfig"]) as box:
    print("fetched:", box.run_code("import iniconfig; print(iniconfig.__file__)").stdout.strip())
    print("network:", box.exec("pip install iniconfig==1.0.0").exit_code)

# Or the packages of an existing virtual environment.
with tempfile.TemporaryDirectory() as folder:
    venv.create(folder)
    library = Path(sysconfig.get_path("purelib", "venv", {"base": folder, "installed_base": sys.base_prefix}))
    (library / "house_rules.py").write_text("limit = 3\n")
    with Sandbox(venv=folder) as box:
        print("shown:  ", box.run_code("import house_rules as r; print(r.__file__, r.limit)").stdout.strip())
