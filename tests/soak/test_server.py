"""A server that has served hundreds of sandboxes is as large as one that has served some. Run by `make soak`."""

import asyncio
from itertools import cycle, islice

import pytest
from daytona import AsyncDaytona, DaytonaConfig

from support.leftovers import count_descriptors, resident_bytes, wait_until
from support.serving import ServedProcess
from support.uses import USES, Use, use_once

pytestmark = pytest.mark.soak

MIB = 2**20
FIRST, TOTAL, AT_ONCE = 50, 500, 4


async def test_after_500_sandboxes_memory_is_where_it_was_after_50(server: ServedProcess) -> None:
    turn = asyncio.Semaphore(AT_ONCE)
    async with AsyncDaytona(DaytonaConfig(api_url=server.url, api_key=server.key)) as sdk:

        async def serve_one(use: Use) -> None:
            async with turn:
                await use_once(sdk, use)

        async def serve(count: int) -> None:
            await asyncio.gather(*map(serve_one, islice(cycle(USES), count)))

        await serve(FIRST)
        before = resident_bytes(server.pid), count_descriptors(server.pid)
        await serve(TOTAL - FIRST)
        after = resident_bytes(server.pid)
        print(f"after {FIRST}: {before[0] / MIB:.1f} MiB, after {TOTAL}: {after / MIB:.1f} MiB")
        assert after - before[0] < 6 * MIB  # caches fill up to their bounds; the smallest leak that was found is 8
        assert wait_until(lambda: count_descriptors(server.pid) <= before[1] + AT_ONCE)
