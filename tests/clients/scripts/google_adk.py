"""google-adk's environment: it works in /workspaces, and knows a timeout by that word in the message."""

import asyncio

from google.adk.integrations.daytona import DaytonaEnvironment


async def use(environment) -> None:
    assert str(environment.working_dir) == "/workspaces"
    answer = await environment.execute("echo $GREETING; echo err >&2; exit 3")
    assert (answer.exit_code, sorted(answer.stdout.split())) == (3, ["err", "hello"]), answer
    assert (await environment.execute("sleep 600", timeout=2)).timed_out
    for content in ("one\n", b"two\n"):  # the second time every folder is there already
        await environment.write_file("deep/er/ä b.txt", content)
    assert await environment.read_file("deep/er/ä b.txt") == b"two\n"
    assert (await environment.execute("cat '/workspaces/deep/er/ä b.txt'")).stdout == "two\n"
    try:
        await environment.read_file("none.txt")
    except FileNotFoundError:
        pass
    else:
        raise AssertionError("a file that is not there was read")


async def main() -> None:
    environment = DaytonaEnvironment(env_vars={"GREETING": "hello"}, timeout=120)
    await environment.initialize()
    try:
        await use(environment)
    finally:
        await environment.close()


asyncio.run(main())
print("came to its end")
