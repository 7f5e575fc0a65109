"""agno's tools, called as an agent calls them."""

from types import SimpleNamespace

from agno.tools.daytona import DaytonaTools

agent = SimpleNamespace(session_state=None)
tools = DaytonaTools()
try:
    assert tools.run_code(agent, "print(6 * 7)") == "42\n"
    assert "ZeroDivisionError" in tools.run_code(agent, "1 / 0")
    assert tools.run_shell_command(agent, "pwd; echo err >&2") == "/home/daytona\nerr\n"
    assert tools.create_file(agent, "sub/a b.txt", "one\ntwo") == "File created/updated: /home/daytona/sub/a b.txt"
    assert tools.read_file(agent, "sub/a b.txt") == "one\ntwo\n"
    assert tools.change_directory(agent, "sub") == "Changed directory to: /home/daytona/sub"
    assert tools.run_shell_command(agent, "ls") == "a b.txt\n"
    assert "a b.txt" in tools.list_files(agent)
    assert tools.delete_file(agent, "a b.txt") == "Deleted: /home/daytona/sub/a b.txt"
    assert tools.run_shell_command(agent, "ls") == ""
    assert "No such file" in tools.read_file(agent, "none.txt")
finally:
    tools.daytona.get(agent.session_state["sandbox_id"]).delete()
print("came to its end")
