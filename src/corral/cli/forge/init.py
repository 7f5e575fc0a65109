"""`corral forge init`: a contest to start from."""

from __future__ import annotations

from pathlib import Path

import click

from corral.cli.display import paint
from corral.errors import SpecError

_CONTEST = """\
# A contest for `corral forge run`. Paths are relative to this file; docs/forge.md has every key.

objective = "Sort the numbers 5 3 8 1, one on each line"
output = "artifact.md"            # the file that each candidate has to write
judge = "judge.py:judge"          # or "default": exit code, artifact, speed
candidates = ["candidates/*"]     # scripts in any language, and folders

repeat = 1                        # rounds; with more, times are medians
seed = 0                          # shuffles the order of starts
# jobs = 2                        # how many run at once; left out: as many as processors and memory allow
# setup = "echo hello > ready"    # run once, in the base that all candidates start from

[timeouts]
run = 30                          # seconds for each run

[resources]                       # the same for all
memory = "256MiB"
# cpus = 0.5                      # left out: one processor, where this machine can limit them

# A candidate that needs more than a path has a table of its own; then `candidates = [...]` above goes away:
#
# [[candidates]]
# id = "gnu"
# command = '''printf '%s' "$1" | grep -o '[0-9]*' | sort -n > "$2"'''
# env = { LC_ALL = "C" }
"""

_PYTHON = '''\
"""Plain: reads the numbers from the objective, and sorts them."""

import re
import sys

objective, output_file = sys.argv[1:3]
numbers = sorted(int(word) for word in re.findall(r"\\d+", objective))
print(f"{len(numbers)} numbers")  # what is printed is the log
with open(output_file, "w", encoding="utf-8") as file:
    file.write("".join(f"{number}\\n" for number in numbers))
'''

_SHELL = """\
#!/bin/sh
# The same in shell. $1 is the objective, $2 the file to write.
echo "looking for numbers"
printf '%s\\n' "$1" | tr -cs '0-9' '\\n' | grep . | sort -n > "$2"
"""

_HASTY = '''\
"""Hasty: does not sort at all."""

import re
import sys

objective, output_file = sys.argv[1:3]
with open(output_file, "w", encoding="utf-8") as file:
    file.write("\\n".join(re.findall(r"\\d+", objective)))
'''

_JUDGE = '''\
"""The judge: gates decide who is in the ranking, weighted scores decide the order."""

from corral.forge import Judge
from corral.forge.judge.gates import ArtifactPresent, ExitCode, PythonGate
from corral.forge.judge.measures import Speed, Success


def are_sorted(work):
    """True, or the reason why not. The artifact comes from the candidate: expect anything."""
    words = work.read_text().split()
    if not words or not all(word.isdecimal() for word in words):
        return "these are not numbers"
    return words == sorted(words, key=int) or f"not sorted: {' '.join(words[:10])}"


judge = Judge(
    gates=(ExitCode(), ArtifactPresent(), PythonGate(are_sorted)),
    scores=(Success(weight=0.7), Speed(weight=0.3)),
)
'''

_README = """\
# A contest

    corral forge run . --trust                          run it
    corral forge run . --trust --repeat 5               several rounds: medians instead of single times
    corral forge run . --trust --report report.html     with an HTML report
    corral forge watch                                  the newest run as a live page

`judge.py` runs on this machine, as you, and not in a sandbox: hence `--trust`. Without it a contest from someone else
is refused, with a list of what it asks for.

- `contest.toml`: objective, rules and judge.
- `candidates/`: each is run as `candidate "<objective>" <output file>` in a sandbox of its own. Exit code 0 is success,
  what it prints is its log, the file is its artifact.
- `judge.py`: gates decide who is in the ranking, weighted scores decide the order.
- `artifacts/`: a folder for each run, with everything that is needed to repeat it.
"""


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), default=".", metavar="[DIR]")
def init(folder: Path) -> int:
    """Write a contest to start from: contest.toml, candidates/, judge.py, README.md. Overwrites nothing."""
    files = {
        "contest.toml": _CONTEST, "candidates/plain.py": _PYTHON, "candidates/shell.sh": _SHELL,
        "candidates/hasty.py": _HASTY, "judge.py": _JUDGE, "README.md": _README,
    }  # fmt: skip
    for name in files:
        if (folder / name).exists():
            raise SpecError(f"{str(folder / name)!r} already exists", hint="give another folder: corral forge init DIR")
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
        if path.suffix == ".sh":
            path.chmod(0o755)
        click.echo(f"  {path}")
    click.echo(paint(f"\nnext: corral forge run {folder} --trust", "bold"))
    return 0
