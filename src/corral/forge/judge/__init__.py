"""Judges: hard gates, weighted scores, and who won.

    from corral.forge.judge import ExitCode, Judge, PythonScore, Regex, Speed

    judge = Judge(gates=[ExitCode(), Regex(r"(?m)^# ")], scores=[PythonScore(rate, weight=3), Speed()])

The names below are loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from corral.forge.judge.commands import Command, CommandScore
    from corral.forge.judge.content import Regex, Schema
    from corral.forge.judge.gates import ArtifactPresent, ExitCode, PythonGate, Size
    from corral.forge.judge.judge import Judge, default_judge
    from corral.forge.judge.llm import LLMComparison, LLMScore
    from corral.forge.judge.measures import Memory, Speed, Success
    from corral.forge.judge.model import Bench, Entry, Gate, GateVerdict, Points, Score, Standing
    from corral.forge.judge.pairwise import Pairwise
    from corral.forge.judge.rounds import PythonScore
    from corral.forge.judge.rubric import EventRules, QualityResult, ScoreResult, recorded_rubric, score_candidate
    from corral.forge.judge.sandboxes import SandboxBench
    from corral.forge.judge.work import Work

_HOME_OF = {
    "ArtifactPresent": "gates",
    "Bench": "model",
    "Command": "commands",
    "CommandScore": "commands",
    "Entry": "model",
    "EventRules": "rubric",
    "ExitCode": "gates",
    "Gate": "model",
    "GateVerdict": "model",
    "Judge": "judge",
    "LLMComparison": "llm",
    "LLMScore": "llm",
    "Memory": "measures",
    "Pairwise": "pairwise",
    "Points": "model",
    "PythonGate": "gates",
    "PythonScore": "rounds",
    "QualityResult": "rubric",
    "Regex": "content",
    "SandboxBench": "sandboxes",
    "Schema": "content",
    "Score": "model",
    "ScoreResult": "rubric",
    "Size": "gates",
    "Speed": "measures",
    "Standing": "model",
    "Success": "measures",
    "Work": "work",
    "default_judge": "judge",
    "recorded_rubric": "rubric",
    "score_candidate": "rubric",
}

__all__ = [
    "ArtifactPresent",
    "Bench",
    "Command",
    "CommandScore",
    "Entry",
    "EventRules",
    "ExitCode",
    "Gate",
    "GateVerdict",
    "Judge",
    "LLMComparison",
    "LLMScore",
    "Memory",
    "Pairwise",
    "Points",
    "PythonGate",
    "PythonScore",
    "QualityResult",
    "Regex",
    "SandboxBench",
    "Schema",
    "Score",
    "ScoreResult",
    "Size",
    "Speed",
    "Standing",
    "Success",
    "Work",
    "default_judge",
    "recorded_rubric",
    "score_candidate",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'corral.forge.judge' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"corral.forge.judge.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
