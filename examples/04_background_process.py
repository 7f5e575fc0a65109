"""A background server that other calls use, and a program that reads input."""

from corral import Sandbox

with Sandbox() as box:
    with box.start(["python3", "-m", "http.server", "8000", "--directory", "/usr/share"]) as server:
        for chunk in server.output():  # until it reports that it listens
            if b"Serving" in chunk.data:
                break
        answer = box.run_code("from urllib.request import urlopen; print(urlopen('http://127.0.0.1:8000').status)")
        print("the server answered", answer.stdout.strip())
    print("and is gone:", server.wait().reason)

    bc = box.start(["python3", "-u", "-c", "import sys\nfor line in sys.stdin: print(eval(line))"])
    bc.write("6 * 7\n")
    for chunk in bc.output():
        print("6 * 7 =", chunk.text.strip())
        break
    bc.close_stdin()
    print("it ended with", bc.wait(timeout=10).exit_code)
