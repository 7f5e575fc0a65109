"""An environment in the place of a sandbox: a sandbox for each tenant and conversation, made by the first call."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.exceptions import UserError

from adapters.pydantic_ai.scripted import Script, run
from corral import AsyncSandbox, Environment, SandboxGoneError, Variable, VariableError
from corral.adapters.pydantic_ai import ConsoleCapability, CorralToolset

pytestmark = pytest.mark.needs_userns


@dataclass
class Tenant:
    """Deps as people write them."""

    tenant: str


class Model(BaseModel):
    """Deps as a model."""

    tenant: str


class Holder:
    """Deps with variables apart."""

    def __init__(self, tenant: str) -> None:
        self.variables = {"tenant": tenant}


@dataclass
class Deps:
    """Deps that bring the environment."""

    backend: Any
    tenant: str


async def test_an_environment_makes_the_sandbox_at_the_first_call_and_keeps_it() -> None:
    async with Environment() as environment:
        toolset = CorralToolset[Any](environment)
        assert environment.sandbox_ids == ()
        assert await run(toolset, ("execute", {"command": "echo kept > a; pwd"})) == ["/home/daytona\n"]
        assert await run(toolset, ("read_file", {"path": "a"})) == ["     1\tkept"]
        assert len(environment.sandbox_ids) == 1
    assert environment.sandbox_ids == ()


@pytest.mark.parametrize(
    "make",
    [Tenant, lambda name: Model(tenant=name), Holder, lambda name: {"tenant": name}],
    ids=["dataclass", "model", "variables", "mapping"],
)
async def test_deps_are_the_context_of_an_environment(make: Callable[[str], Any]) -> None:
    async with Environment(env={"TENANT": Variable("tenant")}) as environment:
        toolset = CorralToolset[Any](environment)
        for name in ("north", "south"):
            shown = await run(toolset, ("execute", {"command": "echo $TENANT; ls; touch of-$TENANT"}), deps=make(name))
            assert shown == [f"{name}\n"]
        assert len(environment.sandbox_ids) == 2


async def test_a_variable_without_a_value_is_the_programmers_mistake() -> None:
    async with Environment(env={"TENANT": Variable("tenant")}) as environment:
        with pytest.raises(VariableError, match="tenant"):
            await run(CorralToolset(environment), ("ls", {}), deps=None)
        assert environment.sandbox_ids == ()


async def test_each_conversation_has_a_sandbox_of_its_own() -> None:
    async with Environment(per_conversation=True) as environment:
        toolset = CorralToolset[Any](environment)
        for number in (1, 2):
            agent = Agent(Script(("execute", {"command": "ls; touch a"})).model, toolsets=[toolset])
            first = await agent.run("go", conversation_id=f"conversation {number}")
            assert len(environment.sandbox_ids) == number
        again = Script(("execute", {"command": "ls"}))
        await Agent(again.model, toolsets=[toolset]).run("go on", conversation_id=first.conversation_id)
        assert again.shown == ["a\n"]
        assert len(environment.sandbox_ids) == 2


async def test_deps_may_bring_the_environment() -> None:
    async with Environment(env={"TENANT": Variable("tenant")}) as environment:
        shown = await run(
            CorralToolset(), ("execute", {"command": "echo $TENANT"}), deps=Deps(environment, tenant="north")
        )
        assert shown == ["north\n"]


async def test_a_gone_sandbox_ends_the_run_and_the_next_run_has_a_new_one() -> None:
    async with Environment() as environment:
        toolset = CorralToolset[Any](environment)
        await run(toolset, ("ls", {}))
        async with environment.open() as box:
            await (await AsyncSandbox.connect(await box.detach())).kill()  # through another handle
        with pytest.raises(SandboxGoneError):
            await run(toolset, ("ls", {}))
        assert await run(toolset, ("execute", {"command": "echo new"})) == ["new\n"]


async def test_background_commands_are_found_again_by_the_next_call() -> None:
    async with Environment() as environment:
        shown = await run(
            CorralToolset(environment, include_background=True),
            ("execute_background", {"command": "echo one; sleep 1000"}),
            ("read_background", {"shell_id": "shell-1", "wait_seconds": 60}),
            ("read_background", {"shell_id": "shell-1"}),
        )
        assert shown[1:] == ["one\n[shell-1: running]", "(nothing new)\n[shell-1: running]"]


async def test_the_capability_takes_an_environment_too() -> None:
    async with Environment() as environment:
        script = Script(("execute", {"command": "echo hi"}))
        capability = ConsoleCapability(sandbox=environment, include_background=True)
        await Agent(script.model, capabilities=[capability]).run("go")
        assert script.shown == ["hi\n"]
        assert "read_background" in script.tools


@pytest.mark.parametrize("source", ["embedded", 7, Environment, object()])
def test_what_is_no_source_is_refused_at_once(source: Any) -> None:
    with pytest.raises(UserError, match="neither a Corral sandbox"):
        CorralToolset(source)
