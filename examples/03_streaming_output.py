"""Streaming output: both streams in order, with bounded memory."""

import time

from corral import OutputChunk, Sandbox

begun = time.monotonic()


def show(chunk: OutputChunk) -> None:
    print(f"{time.monotonic() - begun:5.2f} s  {chunk.stream}  {chunk.text.rstrip()}")


with Sandbox() as box:
    box.exec("for n in 1 2 3; do echo step $n; echo warning $n >&2; sleep 0.2; done", on_output=show)

    # Of a large output the beginning and the end are kept, and the result says how much is missing.
    flood = box.exec("seq 1 3000000", output_limit_bytes=10_000)
    print(f"printed {flood.stdout_total_bytes} bytes, kept {len(flood.stdout_bytes)}, truncated: {flood.truncated}")
    print(*(line for line in flood.stdout.splitlines() if "left out" in line))
    print("last line:", flood.stdout.splitlines()[-1])
