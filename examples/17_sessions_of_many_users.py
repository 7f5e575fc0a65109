"""A sandbox for each user of a service: created on demand, kept while in use, with its files kept between visits.

The model is a script here; put the name of yours in its place.

Packages: corral[pydantic-ai]
"""

import asyncio
import tempfile
from dataclasses import dataclass

from pydantic_ai import Agent, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel

from corral.adapters.pydantic_ai import CorralSandbox, SessionManager, create_console_toolset


@dataclass
class UserDeps:
    backend: CorralSandbox
    user_id: str


def make_agent(*calls: ToolCallPart) -> Agent[UserDeps, str]:
    script = iter([*calls, TextPart("done")])
    model = FunctionModel(lambda messages, info: ModelResponse(parts=[next(script)]))
    toolset = create_console_toolset(require_execute_approval=False)
    return Agent(model, deps_type=UserDeps, toolsets=[toolset])


async def chat(manager: SessionManager, user_id: str, command: str) -> None:
    """What a request of a web server would do."""
    sandbox = await manager.get_or_create(user_id)
    agent = make_agent(ToolCallPart("execute", {"command": command}))
    result = await agent.run("Go on.", deps=UserDeps(sandbox, user_id))
    (told,) = [part for message in result.all_messages() for part in message.parts if part.part_kind == "tool-return"]
    print(f"{user_id}: {str(told.content).strip()}")


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with SessionManager(
            default_runtime="python-minimal", default_idle_timeout=1800, workspace_root=folder, max_sessions=100
        ) as manager:
            manager.start_cleanup_loop(interval=300)
            await asyncio.gather(
                chat(manager, "alice", "echo alices secret > notes.txt; ls"),
                chat(manager, "bob", "ls -a | wc -l"),
            )
            print("sessions:", sorted(manager.sessions))
            await manager.release("alice")  # she logs out, and her sandbox is deleted
            await chat(manager, "alice", "cat notes.txt")  # she is back, in a new sandbox with her files
        print("sessions after the end:", len(manager))


asyncio.run(main())
