"""Code and shell tools for an AG2 agent. The model is scripted here; replace it with your configuration.

Packages: corral[ag2]
"""

import asyncio
import json
from typing import Any

from ag2 import Agent
from ag2.events import ToolCallEvent
from ag2.testing import TestConfig

from corral.adapters.ag2 import CorralEnvironment, SandboxCodeTool, SandboxShellTool


def call(name: str, **arguments: Any) -> ToolCallEvent:
    return ToolCallEvent(name=name, arguments=json.dumps(arguments))


async def main() -> None:
    async with CorralEnvironment(timeout=30) as environment:
        tools = [SandboxCodeTool(environment), SandboxShellTool(environment, readonly=True)]
        model = TestConfig(
            call("run_code", language="python", code="open('primes.txt', 'w').write('2 3 5 7')"),
            call("run_shell_command", command="cat primes.txt"),
            "The first primes are in primes.txt.",
            call("run_shell_command", command="rm primes.txt"),  # rejected, because of readonly=True
            "They are still there.",
        )
        agent = Agent("coder", config=model, tools=tools)
        reply = await agent.ask("Write the first primes into a file.")
        print(await reply.content())
        reply = await reply.ask("Now delete it.")
        print(await reply.content())

        # One environment is one sandbox; your own code can open it too.
        async with environment.open() as sandbox:
            print((await sandbox.exec(["cat", "primes.txt"])).output)


asyncio.run(main())
