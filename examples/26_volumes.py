"""What outlives a sandbox: a volume that several share, and a folder of the host that only `apply` changes."""

import tempfile
from pathlib import Path

from corral import Mount, Sandbox, Volume
from corral.backends.embedded import EmbeddedBackend

volume = Volume.create("example-results")
with Sandbox(mounts={"/data": volume}) as writer, Sandbox(mounts={"/data": "example-results:ro"}) as reader:
    writer.exec("echo 42 > /data/answer", check=True)
    print("shared: ", reader.exec("cat /data/answer").stdout.strip())
    print("written:", reader.exec("echo 43 > /data/answer").exit_code == 0)
volume.delete()

project = Path(tempfile.mkdtemp())
(project / "hello.py").write_text("print('helo')\n")
backend = EmbeddedBackend(host_folders=[str(project)])  # the operator's list; by default it is empty
with Sandbox(backend=backend, mounts=[Mount("/work", source=project, mode="overlay")], workdir="/work") as box:
    box.exec("sed -i s/helo/hello/ hello.py && touch new", check=True)  # an agent at work
    print("changed:", [f"{change.kind} {change.path}" for change in box.diff()])
    print("before: ", (project / "hello.py").read_text().strip())
    box.apply()
print("after:  ", (project / "hello.py").read_text().strip())
