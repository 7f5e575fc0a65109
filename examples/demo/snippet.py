"""The programs of the demo, as they are shown and as they are run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Snippet:
    """One program, and what is said about it."""

    title: str
    language: str
    code: str
    stopped_by: str = ""
    timeout: float = 20.0


LANGUAGES = (
    Snippet(
        "Python", "python",
        "import getpass, socket\n"
        'print(f"{getpass.getuser()} on {socket.gethostname()}: 6 × 7 = {6 * 7}")',
    ),
    Snippet(
        "bash", "bash",
        "words=(no daemon, no image, no account)\n"
        'echo "${words[*]}: $(ls -A / | wc -w) names in /, 0 of them yours"',
    ),
    Snippet(
        "JavaScript", "javascript",
        "const squares = [1, 2, 3, 4].map((n) => n * n);\n"
        "const sum = squares.reduce((a, b) => a + b);\n"
        "console.log(`${squares.join(' + ')} = ${sum}`);",
    ),
    Snippet(
        "TypeScript", "typescript",
        "type Animal = { name: string; legs: number };\n"
        'const herd: Animal[] = [{name: "cow", legs: 4}, {name: "hen", legs: 2}];\n'
        "const legs = herd.reduce((sum: number, each) => sum + each.legs, 0);\n"
        "console.log(`${herd.length} animals, ${legs} legs`);",
    ),
)  # fmt: skip

STATE = (
    Snippet("Python writes", "python", 'open("herd.csv", "w").write("cow,4\\nhen,2\\nfoal,4\\n")'),
    Snippet("bash reads it", "bash", "sort -t, -k2 -n herd.csv | tee sorted.csv | head -n 1"),
    Snippet("Python again", "python", 'print(sum(int(row.split(",")[1]) for row in open("sorted.csv")), "legs")'),
)

HOSTILE = (
    Snippet(
        "reads the host's passwords", "python",
        'print(open("/etc/shadow").read())',
        stopped_by="its own root file system: the host's /etc and homes are not in it",
    ),
    Snippet(
        "opens a socket to the outside", "python",
        "import socket\n"
        'names = [row.split(":")[0].strip() for row in open("/proc/net/dev")][2:]\n'
        'print("interfaces:", *names)\n'
        'if names == ["lo"]:  # nothing can leave: only then is it tried\n'
        '    socket.create_connection(("192.0.2.1", 443), timeout=2)',
        stopped_by="its own network namespace, which only has loopback",
    ),
    Snippet(
        "takes all the memory", "python",
        "hoard = []\nwhile True:\n    hoard.append(bytearray(16 << 20))",
        stopped_by="the memory limit of {memory}",
    ),
    Snippet(
        "fork bomb", "python",
        "import os\n"
        "first, refused = os.getpid(), False\n"
        "while True:\n"
        "    try:\n"
        "        os.fork()\n"
        "    except OSError as error:\n"
        "        if os.getpid() == first and not refused:\n"
        "            print(error.strerror)\n"
        "        refused = True",
        stopped_by="the limit of {processes} processes; the timeout ended all of them at once",
        timeout=1.0,
    ),
)  # fmt: skip

STUBBORN = Snippet(
    "ignores every request to stop", "bash",
    "trap '' TERM INT HUP\n"
    "sleep 1000 & setsid sleep 1000 &\n"
    "echo 'not leaving'; while :; do sleep 1; done",
    stopped_by="the timeout ends the whole tree of processes, not only the first",
    timeout=0.5,
)  # fmt: skip
