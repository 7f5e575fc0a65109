"""AG2's executor and environment on a Daytona service: only the import is different.

If DAYTONA_API_URL is not set, the service is a `corral serve` that lives as long as this program.

Packages: corral[ag2,daytona,server]
"""

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from corral.adapters.ag2 import CodeBlock, DaytonaCodeExecutor, DaytonaEnvironment


def run_blocks() -> None:
    """As with autogen.coding."""
    with DaytonaCodeExecutor(timeout=60, env_vars={"NAME": "world"}) as executor:
        result = executor.execute_code_blocks(
            [
                CodeBlock(language="python", code="import os; print('hello', os.environ['NAME'])"),
                CodeBlock(language="bash", code="echo 6 7 | tr ' ' '*'"),
            ]
        )
        print("exit code", result.exit_code, "and output", repr(result.output))


async def use_sandbox() -> None:
    """As with ag2.extensions.daytona."""
    async with DaytonaEnvironment(timeout=60) as environment, environment.open() as sandbox:
        await sandbox.put_file("data.txt", b"3\n1\n2\n")
        result = await sandbox.exec(["sort", "data.txt"])
        print("exit code", result.exit_code, "and output", repr(result.output))


@contextmanager
def own_service() -> Iterator[None]:
    """A server on a free port."""
    with tempfile.TemporaryDirectory() as folder:
        key = "a-key-of-this-example"
        server = subprocess.Popen(
            [sys.executable, "-P", "-m", "corral", "serve", "--port", "0", "--data-dir", folder],
            stdout=subprocess.PIPE, text=True, env=os.environ | {"CORRAL_API_KEY": key},
        )  # fmt: skip
        try:
            assert server.stdout is not None
            url = next(line.split()[-1] for line in server.stdout if line.startswith("listening on "))
            os.environ |= {"DAYTONA_API_URL": url, "DAYTONA_API_KEY": key}
            yield
        finally:
            server.terminate()
            server.wait()
            if server.stdout is not None:
                server.stdout.close()


def main() -> None:
    run_blocks()
    asyncio.run(use_sandbox())


if __name__ == "__main__":
    if "DAYTONA_API_URL" in os.environ:
        main()
    else:
        with own_service():
            main()
