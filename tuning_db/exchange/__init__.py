"""Results from one database to another as JSON lines: the format, reading and writing it, export and import."""

from .format import DecisionLine, ExchangeLine, HeaderLine, RunLine, TrialLine, WinnerLine, line, lines

__all__ = ["DecisionLine", "ExchangeLine", "HeaderLine", "RunLine", "TrialLine", "WinnerLine", "line", "lines"]
