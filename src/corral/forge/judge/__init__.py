"""Judges: hard gates, weighted scores, and who won.

    from corral.forge.judge import ExitCode, Judge, PythonScore, Regex, Speed

    judge = Judge(gates=[ExitCode(), Regex(r"(?m)^# ")], scores=[PythonScore(rate, weight=3), Speed()])

The names below are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from corral.client.exports import load_lazily

if TYPE_CHECKING:
    from corral.forge.judge.commands import Command as Command
    from corral.forge.judge.commands import CommandScore as CommandScore
    from corral.forge.judge.content import Regex as Regex
    from corral.forge.judge.content import Schema as Schema
    from corral.forge.judge.gates import ArtifactPresent as ArtifactPresent
    from corral.forge.judge.gates import ExitCode as ExitCode
    from corral.forge.judge.gates import PythonGate as PythonGate
    from corral.forge.judge.gates import Size as Size
    from corral.forge.judge.judge import Judge as Judge
    from corral.forge.judge.judge import default_judge as default_judge
    from corral.forge.judge.llm import LLMComparison as LLMComparison
    from corral.forge.judge.llm import LLMScore as LLMScore
    from corral.forge.judge.measures import Memory as Memory
    from corral.forge.judge.measures import Speed as Speed
    from corral.forge.judge.measures import Success as Success
    from corral.forge.judge.model import Bench as Bench
    from corral.forge.judge.model import Entry as Entry
    from corral.forge.judge.model import Gate as Gate
    from corral.forge.judge.model import GateVerdict as GateVerdict
    from corral.forge.judge.model import Points as Points
    from corral.forge.judge.model import Score as Score
    from corral.forge.judge.model import Standing as Standing
    from corral.forge.judge.pairwise import Pairwise as Pairwise
    from corral.forge.judge.rounds import PythonScore as PythonScore
    from corral.forge.judge.rubric import EventRules as EventRules
    from corral.forge.judge.rubric import QualityResult as QualityResult
    from corral.forge.judge.rubric import ScoreResult as ScoreResult
    from corral.forge.judge.rubric import recorded_rubric as recorded_rubric
    from corral.forge.judge.rubric import score_candidate as score_candidate
    from corral.forge.judge.sandboxes import SandboxBench as SandboxBench
    from corral.forge.judge.work import Work as Work
else:
    __getattr__, __dir__, __all__ = load_lazily(
        __name__,
        {
            ".commands": "Command CommandScore",
            ".content": "Regex Schema",
            ".gates": "ArtifactPresent ExitCode PythonGate Size",
            ".judge": "Judge default_judge",
            ".llm": "LLMComparison LLMScore",
            ".measures": "Memory Speed Success",
            ".model": "Bench Entry Gate GateVerdict Points Score Standing",
            ".pairwise": "Pairwise",
            ".rounds": "PythonScore",
            ".rubric": "EventRules QualityResult ScoreResult recorded_rubric score_candidate",
            ".sandboxes": "SandboxBench",
            ".work": "Work",
        },
    )
