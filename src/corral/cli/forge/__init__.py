"""`corral forge`: contests of candidates, each in a sandbox of its own."""

from __future__ import annotations

import click

from corral.cli.forge.init import init
from corral.cli.forge.run import run
from corral.cli.forge.runs import compare, list_runs, replay, report, watch


@click.group()
def forge() -> None:
    """Run contests: candidates on one objective, each in its own sandbox, judged and recorded.

    \b
    corral forge run                                   the contest that ships: five candidates
    corral forge run a.py b.py -o 'Sort the numbers'   yours
    corral forge init my-contest                       write one to start from
    corral forge watch                                 the newest run as a live page
    """


for command in (run, init, list_runs, replay, compare, report, watch):
    forge.add_command(command)
