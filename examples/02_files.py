"""Files: copied into the sandbox, changed inside, and copied out again."""

import tempfile
from pathlib import Path

from corral import Sandbox

TOTAL = """
import csv
print(sum(int(row["price"]) for row in csv.DictReader(open("prices.csv"))))
"""

with Sandbox() as box, tempfile.TemporaryDirectory() as folder:
    project = Path(folder, "project")
    project.mkdir()
    (project / "prices.csv").write_text("item,price\napple,3\npear,4\n")
    (project / "total.py").write_text(TOTAL)

    box.files.upload(project, "project")
    print("total:", box.exec("python3 total.py | tee total.txt", cwd="project", check=True).stdout.strip())

    # An edit preserves all other bytes; the text must occur exactly once.
    done = box.files.edit("project/prices.csv", "pear,4", "pear,40")
    print("edited:", done.replacements, "place,", done.size, "bytes")
    print("found: ", [f"{match.path}:{match.line}" for match in box.files.grep("pear").matches])

    box.files.download("project", Path(folder, "out"))
    print("back:  ", sorted(path.name for path in Path(folder, "out").iterdir()))
