"""A dispatcher that runs torch's operators, and implementations that tell: as in the tests of these operators."""

from ..torch_side.conftest import add, dispatcher

__all__ = ["add", "dispatcher"]
