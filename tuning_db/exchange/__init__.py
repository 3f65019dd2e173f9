"""Results from one database to another as JSON lines: the format, reading and writing it, export and import."""

from .format import DecisionLine, HeaderLine, Line, RunLine, TrialLine, WinnerLine, line, lines

__all__ = ["DecisionLine", "HeaderLine", "Line", "RunLine", "TrialLine", "WinnerLine", "line", "lines"]
