"""A contest: three candidates on one objective, each in its own sandbox, and a judge that scores their output."""

from pathlib import Path

from corral.forge import Candidate, ForgeEvent, Judge, SyncSeat, race
from corral.forge.judge import ArtifactPresent, ExitCode, PythonScore, Work

OBJECTIVE = "List the prime numbers below 50, one on each line"
PRIMES = {n for n in range(2, 50) if all(n % d for d in range(2, n))}

Path("sieve.py").write_text(
    "import sys\n"
    "found = [n for n in range(2, 50) if all(n % d for d in range(2, n))]\n"
    "print(len(found), 'found')\n"
    "open(sys.argv[2], 'w').write('\\n'.join(map(str, found)))\n"
)


def drive(seat: SyncSeat) -> None:
    """Your agent: it runs here, and works in the sandbox."""
    answer = "2 3 5 7 9 11 13"  # a model would answer this
    seat.log(f"the model says {answer}")
    seat.sandbox.files.write(seat.output, answer.replace(" ", "\n"))


def rate(work: Work) -> float:
    """0 to 100: correct numbers minus wrong ones."""
    words = {int(word) for word in work.read_text().split() if word.isdecimal()}
    return max(0.0, 100 * (len(words & PRIMES) - len(words - PRIMES)) / len(PRIMES))


def tell(event: ForgeEvent) -> None:
    """Called during the contest, for output, phases and meters too."""
    if event.kind == "attempt-ended":
        print(event.candidate, event.data["outcome"], "and said:", event.data["log"].strip() or "nothing")


result = race(
    [
        "sieve.py",
        Candidate.command("seq 1 2 49 > {output}", id="odd"),  # any language, any program
        Candidate.agent(drive, id="agent"),
    ],
    OBJECTIVE,
    Judge(gates=(ExitCode(), ArtifactPresent()), scores=(PythonScore(rate),)),
    on_event=tell,
)
for standing in result.standings:
    print(standing.rank, standing.candidate, round(standing.total, 1), f"{standing.seconds['median']:.3f} s")
print("winner:", *result.winners)
print("everything is in", result.folder.parent.name)
