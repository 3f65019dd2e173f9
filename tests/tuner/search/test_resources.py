"""Compiled code that does not fit the device is told from what does, with the reason."""

from __future__ import annotations

from registry.artifact import Artifact, Variant
from registry.device import Device
from registry.tuner.search.resources import misfit

H200 = Device("cuda", 0, "NVIDIA H200", "sm_90", 132, 141 * 2**30, 60 * 2**20, 227 * 1024, 65536)


def compiled(**resources: int) -> Artifact:
    return Artifact(Variant("triton", "kernel", {}), resources=resources)


def test_what_fits_has_no_reason() -> None:
    assert misfit([compiled(), compiled(registers=255, shared_bytes=227 * 1024, spill_bytes=0)], H200) == ""


def test_one_launch_of_several_that_spills_is_enough() -> None:
    assert "16 bytes spill" in misfit([compiled(), compiled(registers=255, spill_bytes=16)], H200)


def test_more_shared_memory_than_a_block_may_have() -> None:
    reason = misfit([compiled(shared_bytes=227 * 1024 + 1)], H200)
    assert str(227 * 1024 + 1) in reason
    assert "NVIDIA H200" in reason


def test_a_device_that_does_not_tell_its_limit_refuses_nothing_for_it() -> None:
    assert misfit([compiled(shared_bytes=1 << 30)], Device.of("cpu")) == ""
