"""Launches of a decode step, which begin before the launch ahead of them has ended."""

from __future__ import annotations

from registry import Device
from registry.backends.programmatic_launch import launches_dependents
from registry.backends.triton import INTERPRETED


def is_dependent(device: Device) -> bool:
    """True where a kernel with a constant DEPENDENT is compiled and launched as a dependent one."""
    return not INTERPRETED and launches_dependents(device)
