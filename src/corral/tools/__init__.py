"""The tools that a model calls: bounded text in, bounded text out, independent of any framework."""

from __future__ import annotations

from corral.tools.backgroundtools import BackgroundTools
from corral.tools.code import CodeTool
from corral.tools.files import FileTools
from corral.tools.permission import OperationRules, Permissions, Rule
from corral.tools.policy import ShellPolicy
from corral.tools.render import ToolText
from corral.tools.shell import ShellCapabilities, ShellTool
from corral.tools.tool import Tool

__all__ = [
    "BackgroundTools",
    "CodeTool",
    "FileTools",
    "OperationRules",
    "Permissions",
    "Rule",
    "ShellCapabilities",
    "ShellPolicy",
    "ShellTool",
    "Tool",
    "ToolText",
]
