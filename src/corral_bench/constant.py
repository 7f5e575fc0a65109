"""A server that only gives prepared answers: what remains of a call then is the client's own time.

python -P -m corral_bench.constant  reads {"METHOD /path": answer} from stdin, prints its address
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from typing import Any

from aiohttp import web

ORIGIN = "@origin@"
"""Stands for its own address in the answers."""


def make_app(answers: dict[str, Any], *, origin: str) -> web.Application:
    """Always gives the same answer to a call, and 404 to calls without a prepared answer."""
    ready = {call: json.dumps(answer).replace(ORIGIN, origin).encode() for call, answer in answers.items()}

    async def answer(request: web.Request) -> web.Response:
        await request.read()
        body = ready.get(f"{request.method} {request.path}")
        if body is None:
            return web.json_response({"statusCode": 404, "message": f"nothing for {request.path}"}, status=404)
        return web.Response(body=body, content_type="application/json")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    return app


async def _serve(answers: dict[str, Any]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        origin = f"http://127.0.0.1:{listener.getsockname()[1]}"
        runner = web.AppRunner(make_app(answers, origin=origin), access_log=None)
        await runner.setup()
        await web.SockSite(runner, listener).start()
        print(origin, flush=True)
        # Until the process that started us closes our input, or ends.
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(_serve(json.loads(sys.stdin.readline())))
