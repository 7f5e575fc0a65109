"""A sandbox as the workspace of Pydantic AI runs: created by the first, found again by the next.

The model is a script here; put the name of yours in its place.

Packages: corral[pydantic-ai]
"""

import asyncio

from pydantic_ai import Agent, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.workspaces import Workspace

from corral.adapters.pydantic_ai import ConsoleCapability, CorralWorkspace, CorralWorkspaces

# Every run of this agent has a workspace, and the console tools work in it. It expires after an hour.
agent = Agent(capabilities=[CorralWorkspaces(lifetime_seconds=3600), ConsoleCapability()])


def script(*calls: ToolCallPart) -> FunctionModel:
    parts = iter([*calls, TextPart("done")])
    return FunctionModel(lambda messages, info: ModelResponse(parts=[next(parts)]))


async def main() -> None:
    first = await agent.run(
        "Make a file.", model=script(ToolCallPart("write_file", {"path": "plan.md", "content": "- one\n- two\n"}))
    )
    ref = first.all_messages()[-1].workspace_ref
    assert ref is not None

    # A later run, perhaps of another process, continues where the first ended.
    second = await agent.run(
        "Go on.", model=script(ToolCallPart("execute", {"command": "echo '- three' >> plan.md; wc -l < plan.md"})),
        workspace=ref,
    )  # fmt: skip
    (told,) = [p for message in second.all_messages() for p in message.parts if p.part_kind == "tool-return"]
    print("lines:", str(told.content).strip())

    # And so does your own code.
    async with CorralWorkspace(ref) as backend:
        workspace = Workspace(backend)
        print(await workspace.read_text("plan.md"))
        print((await workspace.run(["sort", "-r", "plan.md"])).stdout)
        await backend.destroy()


asyncio.run(main())
