"""The same contest has the same winner on every backend, and hostile candidates do no harm on any of them."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.backends.daytona import DaytonaBackend
from corral.backends.docker import DockerBackend
from corral.backends.embedded import EmbeddedBackend
from corral.forge import Candidate, Contest, Judge, Timeouts
from corral.forge.judge.gates import ArtifactPresent, ExitCode
from corral.forge.judge.rounds import PythonScore
from corral.forge.judge.work import Work
from corral.protocol import Backend
from corral.spec import Resources
from support.dockerd import Daemon
from support.serving import ServedProcess

pytestmark = pytest.mark.needs_userns


@pytest.fixture(
    scope="module",
    params=[
        "embedded",
        pytest.param("daytona", marks=pytest.mark.check),
        pytest.param("docker", marks=[pytest.mark.check, pytest.mark.needs_docker]),
    ],
)
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    if request.param == "embedded":
        yield EmbeddedBackend()
    elif request.param == "daytona":
        server: ServedProcess = request.getfixturevalue("server")
        opened: Backend = DaytonaBackend(api_key=server.key, api_url=server.url)
        yield opened
        asyncio.run(opened.aclose())
    else:
        daemon: Daemon = request.getfixturevalue("daemon")
        opened = DockerBackend(host=daemon.host, image=daemon.image)
        yield opened
        asyncio.run(opened.aclose())


CANDIDATES = {
    "short": "import sys; open(sys.argv[2], 'w').write('one')",
    "long": "import sys; open(sys.argv[2], 'w').write('one two three')",
    "crash": "import sys; open(sys.argv[2], 'w').write('one two three four'); 1 / 0",
    "absent": "print('nothing to see')",
    "link": "import os, sys; os.symlink('/etc/passwd', sys.argv[2])",
    "fifo": "import os, sys; os.mkfifo(sys.argv[2])",
    "forks": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "flood": "import sys\nfor _ in range(2000): print('x' * 9999)\nopen(sys.argv[2], 'w').write('')",
}
OUTCOMES = {
    "short": "ok", "long": "ok", "crash": "crashed", "absent": "no-artifact", "link": "refused-artifact",
    "fifo": "refused-artifact", "forks": "timeout", "flood": "ok",
}  # fmt: skip


def count_words(work: Work) -> float:
    return float(10 * len(work.read_text().split()))


async def test_same_winner_everywhere(tmp_path: Path, backend: Backend) -> None:
    candidates = []
    for name, text in CANDIDATES.items():
        (tmp_path / f"{name}.py").write_text(text)
        candidates.append(Candidate.script(tmp_path / f"{name}.py"))
    judge = Judge(gates=(ExitCode(), ArtifactPresent()), scores=(PythonScore(count_words),))
    before = {info.sandbox_id for info in await backend.list()}  # servers and daemons are shared with other tests
    result = await Contest(
        candidates, "write words", judge, backend=backend, artifacts_dir=tmp_path / "artifacts", jobs=2,
        timeouts=Timeouts(run=8), resources=Resources(cpus=0.5, processes=32, memory_bytes="256MiB").as_usual(),
    ).run()  # fmt: skip
    assert {attempt.candidate: attempt.outcome for attempt in result.attempts} == OUTCOMES, result.attempts
    assert result.winners == ("long",)
    assert [(standing.candidate, standing.rank) for standing in result.standings[:3]] == [
        ("long", 1),
        ("short", 2),
        ("flood", 3),
    ]
    assert {standing.candidate for standing in result.standings if standing.disqualified} == {
        name for name, outcome in OUTCOMES.items() if outcome != "ok"
    }
    flood = next(attempt for attempt in result.attempts if attempt.candidate == "flood")
    assert flood.log_bytes == 2000 * 10_000
    assert {info.sandbox_id for info in await backend.list()} <= before
