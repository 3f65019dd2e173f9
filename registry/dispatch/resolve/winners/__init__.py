"""Winners in memory: read once per op and hardware, found by a problem's dimensions, with the evidence for each."""

from .op_winners import OpWinners
from .placed_winners import Winner
from .reading import REGIME, Winners
from .winner_index import Near
from .winner_sources import WinnerSource, source_of

__all__ = ["REGIME", "Near", "OpWinners", "Winner", "WinnerSource", "Winners", "source_of"]
