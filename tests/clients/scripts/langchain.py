"""langchain-daytona, which deepagents uses too."""

from daytona import Daytona
from langchain_daytona import DaytonaSandbox

daytona = Daytona()
sandbox = daytona.create()
try:
    backend = DaytonaSandbox(sandbox=sandbox)
    answer = backend.execute("echo out; echo err >&2; exit 3")
    assert (answer.exit_code, answer.output) == (3, "out\n\n<stderr>err</stderr>"), answer
    answer = backend.execute("echo before; sleep 600", timeout=8)
    assert answer.exit_code == 124, answer
    assert "before" in answer.output, answer
    path = "/home/daytona/deep/ä.txt"
    (uploaded,) = backend.upload_files([(path, b"one\ntwo\n")])
    assert uploaded.error is None, uploaded
    got, none = backend.download_files([path, "/home/daytona/none"])
    assert (got.content, none.error) == (b"one\ntwo\n", "file_not_found"), (got, none)
    assert backend.write("/home/daytona/deep/new.txt", "three\n").error is None
    assert "two" in str(backend.read(path))
    assert backend.edit(path, "two", "2").error is None
    assert len(backend.ls("/home/daytona/deep").entries) == 2
    assert len(backend.glob("*.txt", "/home/daytona/deep").matches) == 2
    assert len(backend.grep("three", "/home/daytona/deep").matches) == 1
finally:
    daytona.delete(sandbox)
print("came to its end")
