"""AG2 from 1.0: DaytonaEnvironment and what its tools do with it."""

import asyncio
from pathlib import PurePosixPath

from ag2.extensions.daytona import DaytonaEnvironment


async def main() -> None:
    async with DaytonaEnvironment(env_vars={"GIVEN": "value"}, timeout=20) as environment:
        async with environment.open() as sandbox:
            answer = await sandbox.exec(["sh", "-c", 'echo "$GIVEN"; exit 5'])
            assert (answer.exit_code, answer.output) == (5, "value\n"), answer
            path = PurePosixPath("folder/script.py")
            await sandbox.put_file(path, b"print('it ran')\n")
            answer = await sandbox.exec(["python3", str(sandbox.workdir / path)])
            assert (answer.exit_code, answer.output) == (0, "it ran\n"), answer
            await sandbox.remove_file(path)
            await sandbox.remove_file(path)
            answer = await sandbox.exec(["sleep", "600"], timeout=1)
            assert answer.exit_code == 124, answer
        async with environment.open() as again:
            assert again is sandbox


asyncio.run(main())
print("came to its end")
