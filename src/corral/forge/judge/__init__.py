"""Judges: hard gates, weighted scores, and who won."""
