"""Run in an environment that has ag2 0.14, by `test_older_ag2.py`: its classic agents with our executors."""

from collections.abc import Callable

import pytest
from autogen import (  # type: ignore[import-not-found]
    ConversableAgent,
    GroupChat,
    GroupChatManager,
    UserProxyAgent,
)
from autogen.coding import CodeBlock  # type: ignore[import-not-found]
from autogen.coding.base import CodeExecutor, CodeResult  # type: ignore[import-not-found]
from autogen.coding.factory import CodeExecutorFactory  # type: ignore[import-not-found]

from corral.adapters.ag2 import DaytonaCodeExecutor, DaytonaCodeResult, SandboxCodeExecutor
from corral.adapters.ag2.executor import CodeExecutorBase


def make_agent(executor: SandboxCodeExecutor) -> ConversableAgent:
    settings = {"executor": executor, "last_n_messages": "auto"}
    return ConversableAgent("runner", llm_config=False, code_execution_config=settings, human_input_mode="NEVER")


def test_it_is_a_code_executor_of_ag2() -> None:
    with SandboxCodeExecutor() as executor:
        assert isinstance(executor, CodeExecutor)
        assert CodeExecutorFactory.create({"executor": executor}) is executor
        result = executor.execute_code_blocks([CodeBlock(code="print(1)", language="python")])
        assert isinstance(result, CodeResult)
        assert result.model_dump() == {"exit_code": 0, "output": "1\n", "sandbox_id": executor.sandbox_id}


def test_result_of_the_known_name_has_the_known_fields() -> None:
    assert list(DaytonaCodeResult.model_fields) == ["exit_code", "output", "sandbox_id"]


def test_an_agent_runs_the_blocks_of_the_last_message() -> None:
    with SandboxCodeExecutor() as executor:
        agent = make_agent(executor)
        for block, answer in (
            ("```python title=x\nprint(6 * 7)\n```", "exitcode: 0 (execution succeeded)\nCode output: 42\n"),
            ("~~~sh\necho no; exit 4\n~~~", "exitcode: 4 (execution failed)\nCode output: no\n"),
        ):
            assert agent.generate_reply([{"role": "user", "content": block}]) == answer


both = pytest.mark.parametrize("make", [SandboxCodeExecutor, DaytonaCodeExecutor], ids=["here", "at a service"])
Make = Callable[[], CodeExecutorBase]


@both
def test_a_user_proxy_answers_with_what_was_printed(make: Make) -> None:
    with make() as executor:
        user = UserProxyAgent("user", human_input_mode="NEVER", code_execution_config={"executor": executor})
        writer = ConversableAgent(
            "writer", llm_config=False, human_input_mode="NEVER", default_auto_reply="```python\nprint(6 * 7)\n```"
        )
        chat = user.initiate_chat(writer, message="go", max_turns=2, silent=True)
        answer = "exitcode: 0 (execution succeeded)\nCode output: 42\n"
        assert answer in [message["content"] for message in chat.chat_history]


@both
def test_a_group_chat(make: Make) -> None:
    with make() as executor:
        writer = ConversableAgent(
            "writer", llm_config=False, human_input_mode="NEVER", default_auto_reply="```sh\ncat a.txt; exit 4\n```"
        )
        runner = ConversableAgent(
            "runner", llm_config=False, human_input_mode="NEVER", code_execution_config={"executor": executor}
        )
        chat = GroupChat(agents=[writer, runner], messages=[], max_round=4, speaker_selection_method="round_robin")
        manager = GroupChatManager(groupchat=chat, llm_config=False)
        writer.initiate_chat(manager, message="```python\nopen('a.txt', 'w').write('kept')\n```", silent=True)
        told = [message["content"] for message in chat.messages if message["name"] == "runner"]
        assert told == [
            "exitcode: 0 (execution succeeded)\nCode output: ",
            "exitcode: 4 (execution failed)\nCode output: kept",
        ]
