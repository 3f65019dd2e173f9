"""Programmatic dependent launches: the driver's attributes, and kernels that would not keep a stream's order."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from registry.backends import programmatic_launch
from registry.backends.cuda import CudaKernel
from registry.backends.cuda.frame import Layout
from registry.backends.cuda.implementation import _check_dependent, _check_launch
from registry.backends.programmatic_launch import launches_dependents, pdl_options
from registry.device import Device
from registry.errors import InvalidDefinitionError, UnsupportedError
from registry.implementation import Launch

from .test_implementation import A100, H200, signature

WAITS = 'extern "C" __global__ void square(float *y, const float *x) { asm volatile("griddepcontrol.wait;"); }'
NEVER = 'extern "C" __global__ void square(float *y, const float *x) { *y = *x * *x; }'
CLUSTER, DEPENDENT = 4, 6


def launch(text: str = WAITS, cluster: tuple[int, ...] = (), **options: Any) -> Launch:
    return Launch(CudaKernel(text, "square"), (8,), ("y", "x"), {}, {"block": 32, **options}, cluster)


def attributes(one: Launch, *, dependent: bool = True) -> list[tuple[int, ...]]:
    """Id and first three ints of each attribute, as the driver reads them."""
    (found,) = Layout([one], signature(), dependent=dependent).attributes
    return [struct.unpack_from("<I4x3I", found, 72 * number) for number in range(len(found) // 72)]


def test_the_driver_is_told_that_a_launch_is_dependent_beside_its_cluster() -> None:
    assert attributes(launch()) == []
    assert attributes(launch(launch_pdl=False)) == []
    assert attributes(launch(launch_pdl=True)) == [(DEPENDENT, 1, 0, 0)]
    assert attributes(launch(cluster=(2,))) == [(CLUSTER, 2, 1, 1)]
    assert attributes(launch(cluster=(2,), launch_pdl=True)) == [(CLUSTER, 2, 1, 1), (DEPENDENT, 1, 0, 0)]


def test_launches_on_misaligned_tensors_keep_the_order_of_the_stream() -> None:
    assert attributes(launch(cluster=(2,), launch_pdl=True), dependent=False) == [(CLUSTER, 2, 1, 1)]


def test_a_kernel_that_never_waits_is_refused_with_what_to_write() -> None:
    one = launch(NEVER, launch_pdl=True)
    with pytest.raises(
        InvalidDefinitionError, match=r"test_dependent_launch.py:\d+: kernel square is launched with"
    ) as fault:
        _check_dependent(one, one.kernel)
    assert 'asm volatile("griddepcontrol.wait;" ::: "memory")' in fault.value.hint
    _check_dependent(launch(NEVER, launch_pdl=False), one.kernel)
    spoken = launch("// griddepcontrol.wait\n" + NEVER, launch_pdl=True)
    with pytest.raises(InvalidDefinitionError, match="never waits"):
        _check_dependent(spoken, spoken.kernel)
    _check_dependent(launch(WAITS, launch_pdl=True), launch(WAITS).kernel)


def test_an_option_that_is_no_bool_is_refused() -> None:
    with pytest.raises(InvalidDefinitionError, match="launch_pdl='yes'"):
        _check_dependent(launch(launch_pdl="yes"), launch().kernel)


def test_a_gpu_without_dependent_launches_is_told_before_the_launch() -> None:
    _check_launch("acme.square", launch(launch_pdl=True), H200)
    with pytest.raises(UnsupportedError, match=r"compute capability 9.0.*NVIDIA A100") as fault:
        _check_launch("acme.square", launch(launch_pdl=True), A100)
    assert "launches_dependents" in fault.value.hint


def test_only_hopper_and_later_with_a_driver_that_captures_them_launch_dependents(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert launches_dependents(H200)
    assert not launches_dependents(A100)
    assert not launches_dependents(Device.of("cpu"))
    assert not launches_dependents(Device.without_hardware("gfx942"))
    monkeypatch.setattr(programmatic_launch, "_driver_version", lambda: 12020)
    assert not launches_dependents(H200)


def test_other_compilers_are_not_given_the_option() -> None:
    assert pdl_options(False) == {}
    assert pdl_options(True) == {"launch_pdl": True}
