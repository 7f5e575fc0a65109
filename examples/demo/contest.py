"""The last part of the demo: the contest that ships."""

from __future__ import annotations

import tempfile
from collections.abc import Callable

from corral.backends.embedded import EmbeddedBackend
from corral.cli.display import columns, cut, plain, show_seconds
from corral.cli.forge.leaderboard import show_standings, show_winner
from corral.forge.contest import Contest
from corral.forge.events import ForgeEvent
from corral.forge.judge.rubric import recorded_rubric
from corral.forge.shipped import OBJECTIVE, list_shipped


async def hold_contest(backend: EmbeddedBackend, *, tell: Callable[[str], None], say: Callable[..., None]) -> bool:
    """Hold it and show who won; whether that is who should have."""

    def listen(event: ForgeEvent) -> None:
        if event.kind == "phase":
            tell(f"{event.candidate}: {event.data.get('phase')} …")

    scripts = list_shipped()
    say(
        f"  {OBJECTIVE}",
        "",
        *(cut(f"  {script.id:<8} {plain(script.description)}", columns()) for script in scripts),
        "",
    )
    with tempfile.TemporaryDirectory(prefix="corral-demo-") as folder:
        result = await Contest(
            scripts, OBJECTIVE, recorded_rubric(), backend=backend,
            artifacts_dir=folder, on_event=listen,
        ).run()  # fmt: skip
        say()  # takes the line of the progress away
        show_standings(result.standings, result.attempts)
        show_winner(result.standings, None)
        say(f"  all of them in {show_seconds(result.seconds)}, each in its own sandbox", "")
    return result.winners == ("gamma",) and result.complete
