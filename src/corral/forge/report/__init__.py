"""The report: a run as one self-contained HTML page."""

from __future__ import annotations

from corral.forge.report.write import render_report, write_report

__all__ = ["render_report", "write_report"]
