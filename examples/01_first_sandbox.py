"""A first sandbox: run code, and read its output, exit reason and resource use."""

from corral import Sandbox

with Sandbox(exec_timeout=30) as box:
    result = box.run_code("print(sum(range(101)))")
    print("printed:", result.stdout.strip())
    print("ended:  ", result.reason, "with", result.exit_code)
    print("took:   ", f"{result.usage.wall_seconds * 1000:.0f} ms")

    # A failed program is also a result.
    failed = box.run_code("import nothing_of_that_name")
    print("failed: ", failed.exit_code, failed.stderr.splitlines()[-1])

    # It can't see your files or use a network.
    curious = "cat /etc/shadow; ls /root; python3 -c 'import socket; socket.create_connection((\"192.0.2.1\", 80), 3)'"
    for line in box.exec(curious).stderr.splitlines():
        if not line.startswith((" ", "Traceback")):
            print("refused:", line)
