"""Exceptions caused by the state of the machine, not by the code that raised them."""
