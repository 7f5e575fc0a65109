"""Many sandboxes concurrently: twenty candidates for one task, each in its own sandbox, and one that never ends."""

import asyncio
import time

from corral import AsyncSandbox

CANDIDATES = [f"print(sum(range({n} * 1000)))" for n in range(19)] + ["while True: pass"]


async def judge(code: str) -> str:
    async with AsyncSandbox() as box:
        result = await box.run_code(code, timeout=3)
        return result.stdout.strip() if result.ok else result.reason


async def main() -> None:
    begun = time.monotonic()
    answers = await asyncio.gather(*(judge(code) for code in CANDIDATES))
    print(answers[:3], "…", answers[-1])
    print(f"{len(answers)} sandboxes in {time.monotonic() - begun:.1f} s")


asyncio.run(main())
