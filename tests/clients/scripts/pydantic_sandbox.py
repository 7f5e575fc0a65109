"""pydantic-ai-backend before 0.2.30: DaytonaSandbox."""

from pydantic_ai_backends import DaytonaSandbox

sandbox = DaytonaSandbox()
try:
    answer = sandbox.execute("pwd; exit 3")
    assert (answer.exit_code, answer.output) == (3, "/home/daytona\n"), answer
    answer = sandbox.execute("sleep 600", timeout=1)
    assert (answer.exit_code, answer.output[:6]) == (1, "Error:"), answer
    path = "/home/daytona/deep/er/ä.txt"
    written = sandbox.write(path, "one\ntwo\nthree\n")
    assert written.error is None, written
    assert sandbox.exists(path)
    assert not sandbox.exists("/home/daytona/none")
    assert sandbox.read_bytes(path) == b"one\ntwo\nthree\n"
    assert not sandbox.read_bytes("/home/daytona/none")
    assert "two" in sandbox.read(path)
    edited = sandbox.edit(path, "two", "2")
    assert (edited.error, edited.occurrences) == (None, 1), edited
    assert sandbox.read_bytes(path) == b"one\n2\nthree\n"
    assert [each["name"] for each in sandbox.ls_info("/home/daytona/deep")] == ["er"]
    assert [each["path"] for each in sandbox.glob_info("**/*.txt", "/home/daytona/deep")]
    assert sandbox.is_alive()
finally:
    sandbox.stop()
print("came to its end")
