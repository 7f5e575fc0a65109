"""What happens to programs that take too long, too much memory or too many processes."""

from corral import Resources, Sandbox

BOMB = """
import os, time
made = 0
try:
    while True:
        if os.fork() == 0:
            time.sleep(60)
        made += 1
except OSError as error:
    print(f"{error.strerror} after {made}", flush=True)
time.sleep(60)
"""

limits = Resources(memory_bytes="128MiB", disk_bytes="256MiB", processes=32, inodes=10_000)
with Sandbox(resources=limits, exec_timeout=20) as box:
    slow = box.exec("trap '' TERM; echo working; while true; do sleep 1; done", timeout=0.5)
    print("too slow:     ", slow.reason, slow.exit_code, "after printing", repr(slow.stdout))

    greedy = box.run_code("block = bytearray(500_000_000)")
    print("too greedy:   ", greedy.reason, greedy.exit_code)

    bomb = box.run_code(BOMB, timeout=1)  # the timeout kills all of them
    print("too many:     ", bomb.stdout.strip())

    full = box.exec("head -c 1G /dev/zero > big")
    print("too much disk:", full.stderr.strip() or full.limit or full.reason)

    print("and it still works:", box.exec("rm -f big; echo yes").stdout.strip())
