"""A tool loop with a client in Anthropic's style. The client is scripted here; replace it with `Anthropic()`."""

from types import SimpleNamespace
from typing import Any

from corral import Sandbox
from corral.tools import CodeTool, ShellTool, Tool


class ScriptedClient:
    """Answers as `client.messages.create` would: two tool calls, then an answer from their results."""

    def __init__(self) -> None:
        self.messages = self

    def create(
        self, *, model: str, max_tokens: int, messages: list[dict[str, Any]], tools: list[dict[str, Any]]
    ) -> Any:
        assert all(tool["input_schema"]["type"] == "object" for tool in tools)
        told = messages[-1]["content"] if len(messages) > 1 else []
        if told:
            text = f"There are {told[-1]['content'].splitlines()[0]} lines."
            return SimpleNamespace(stop_reason="end_turn", content=[SimpleNamespace(type="text", text=text)])
        code = "open('notes.txt', 'w').write('one\\ntwo\\nthree\\n')"
        calls = [
            ("run_code", {"code": code, "language": "python"}),
            ("run_shell_command", {"command": "wc -l <notes.txt"}),
        ]
        content = [
            SimpleNamespace(type="tool_use", id=f"toolu_{number}", name=name, input=given)
            for number, (name, given) in enumerate(calls)
        ]
        return SimpleNamespace(stop_reason="tool_use", content=content)


def describe(tool: Tool) -> dict[str, Any]:
    """The tool in this API's format: the schema has another name."""
    return {"name": tool.name, "description": tool.description, "input_schema": tool.schema}


def ask(client: Any, question: str, tools: dict[str, Tool], *, turns: int = 10) -> str:
    """Let the model use the tools until it answers."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": question}]
    offered = [describe(tool) for tool in tools.values()]
    for _ in range(turns):
        reply = client.messages.create(model="any", max_tokens=1024, messages=messages, tools=offered)
        if reply.stop_reason != "tool_use":
            return "".join(part.text for part in reply.content if part.type == "text")
        messages.append({"role": "assistant", "content": reply.content})
        results = []
        for part in reply.content:
            if part.type == "tool_use":
                text = tools[part.name].call_sync(part.input)
                shown = {"type": "tool_result", "tool_use_id": part.id, "content": str(text), "is_error": not text.ok}
                results.append(shown)
        messages.append({"role": "user", "content": results})
    raise RuntimeError(f"no answer after {turns} turns")


with Sandbox(exec_timeout=30) as box:
    own = [CodeTool(box.async_sandbox), ShellTool(box.async_sandbox)]
    print(ask(ScriptedClient(), "How many lines has the file?", {tool.name: tool for tool in own}))
