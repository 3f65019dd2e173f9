"""Deciding: the finals of a problem, the judge of their ratios, and the noise of the machine."""
