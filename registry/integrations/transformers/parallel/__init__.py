"""Layers that the ranks of a tensor-parallel plan share, packed: each rank has its part, and the plan communicates."""
