"""Measuring: the timing protocol, samplers for the CPU and for GPUs, clocks, and the copy floor."""
