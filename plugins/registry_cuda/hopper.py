"""Reasons of kernels whose instructions Hopper alone has."""

from __future__ import annotations

from collections.abc import Iterator

from registry import Device


def hopper_reasons(device: Device) -> Iterator[str]:
    """Why kernels by wgmma cannot run on a GPU of another compute capability than 9.0."""
    if device.type == "cuda" and device.capability[0] != 9:
        yield f"wgmma is of compute capability 9.0, this GPU has {'.'.join(map(str, device.capability))}"
