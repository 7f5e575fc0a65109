"""The smallest runner there is: create, exec, delete."""

from daytona import Daytona

daytona = Daytona()
sandbox = daytona.create()
try:
    answer = sandbox.process.exec("echo to stdout; echo to stderr >&2; exit 7")
    assert answer.exit_code == 7, answer
    assert "to stdout\n" in answer.result, answer
finally:
    daytona.delete(sandbox)
print("came to its end")
