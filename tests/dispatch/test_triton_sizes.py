"""New sizes of a Triton kernel that is compiled for multiples of 16: Triton compiles, the driver is a recorder."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton as triton_language
import triton.language as tl

from registry import Config, Device, Floor, Launch, Op, Problem, Space, Tolerance
from registry.artifact import Artifact, Target, Variant
from registry.backends.launch_checks import launches_of
from registry.backends.launch_forms import Forms
from registry.backends.triton import TritonImplementation
from registry.backends.triton import implementation as triton
from registry.backends.triton import launch as triton_launch
from registry.backends.triton.launch import DeviceForm
from registry.discovery.catalog import Catalog
from registry.dispatch.dispatcher import Dispatcher
from registry.dispatch.miss import Miss

H200 = Device("cuda", 0, "NVIDIA H200", "sm_90", 132, 141 * 2**30, 60 * 2**20, 227 * 1024, 65536)
SM_90 = Target("cuda", "sm_90")


@triton_language.jit
def copied(y, x, n, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + place, tl.load(x + place, mask=place < n), mask=place < n)


COPY = Op(
    name="acme::copied",
    schema="acme::copied(Tensor x) -> Tensor y",
    version=1,
    reference=torch.clone,
    fake=torch.empty_like,
    problem=lambda arguments: {"n": arguments.tensor("x").numel},
    inputs=lambda problem, kind, generator: (torch.zeros(int(problem.n)),),
    floor=lambda problem: Floor(8 * problem.n, 0),
    tolerance=Tolerance({}, {}, lambda problem, reference: reference),
    static=frozenset(),
    dynamic=frozenset({"n"}),
)


class Copied(TritonImplementation):
    """Copies float32; its kernel is compiled for multiples of 16 apart."""

    op, name = "acme::copied", "acme.copied"
    device_types = frozenset({"cpu"})

    def space(self, problem: Problem, device: Device) -> Space:
        return Space(BLOCK=[64])

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        return Launch(copied, (-(-problem.n // 64),), ("y", "x", problem.n), config)


class Driver:
    """What was compiled, and the variant and the size of each launch."""

    def __init__(self) -> None:
        self.compiled: list[Variant] = []
        self.launched: list[tuple[Variant, int]] = []


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    """The CPU as an H200: kernels are compiled for one, and a launch copies as the kernel would."""
    seen = Driver()
    variants, compile_, bound = TritonImplementation.variants, TritonImplementation.compile, TritonImplementation._bound

    def compiling(self: TritonImplementation, variant: Variant, _: Target) -> Artifact:
        seen.compiled.append(variant)
        return compile_(self, variant, SM_90)

    monkeypatch.setattr(TritonImplementation, "compile", compiling)
    monkeypatch.setattr(
        TritonImplementation,
        "launches",
        lambda self, problem, config, device: launches_of(self, self.launch(problem, config, device)),
    )
    monkeypatch.setattr(
        TritonImplementation,
        "variants",
        lambda self, problem, config, _, signature: variants(self, problem, config, H200, signature),
    )
    monkeypatch.setattr(
        TritonImplementation, "_bound", lambda self, launches, _, built: bound(self, launches, H200, built)
    )

    def loaded(artifact: Artifact, device: Device) -> Any:
        def launch(*given: Any) -> None:
            y, x, n, _ = given[-4:]
            assert given[:3] == (-(-n // 64), 1, 1)
            seen.launched.append((artifact.variant, n))
            ctypes.memmove(y, x, 4 * n)

        launcher = SimpleNamespace(
            launch=launch, global_scratch_size=0, num_ctas=1, launch_cooperative_grid=False, launch_pdl=False
        )
        return SimpleNamespace(run=launcher, function=1, packed_metadata=(), metadata=SimpleNamespace())

    monkeypatch.setattr(triton, "_load", loaded)
    monkeypatch.setattr(triton, "_FORMS", Forms())
    monkeypatch.setattr(DeviceForm, "of", lambda launches, bound, _: DeviceForm(launches, bound, 0, direct=True))
    monkeypatch.setattr(triton_launch, "current_device", lambda: 0)
    monkeypatch.setattr(triton_launch, "current_stream", lambda _: 5)
    return seen


@pytest.mark.skipif(triton.INTERPRETED, reason="the interpreter compiles nothing")
@pytest.mark.parametrize("first", [64, 100])
def test_a_size_runs_the_variant_of_its_divisibility(
    monkeypatch: pytest.MonkeyPatch, driver: Driver, first: int
) -> None:
    resolved: list[int] = []
    whole = Miss._first_that_runs

    def counting(self: Miss, asked: Any, *given: Any) -> Any:
        resolved.append(asked.tensors[0].numel())
        return whole(self, asked, *given)

    monkeypatch.setattr(Miss, "_first_that_runs", counting)
    dispatcher = Dispatcher(Catalog(entry_points=()))
    dispatcher.catalog.define(COPY)
    dispatcher.register(Copied())
    other = 164 - first
    sizes = [first, other, 128, 37, 4096, 4097, 48, 15, 16, 128, 37, first]
    for n in sizes:
        x = torch.randn(n)
        assert dispatcher.call("acme::copied", x).equal(x)
    assert resolved == [first, other], "sizes of both kinds are bound to what is loaded"
    assert len(driver.compiled) == 2
    assert [n for _, n in driver.launched] == sizes
    for variant, n in driver.launched:
        assert ("n" in variant.spec["aligned"]) == (n % 16 == 0)
    assert {variant.key for variant, _ in driver.launched} == {variant.key for variant in driver.compiled}


@pytest.mark.skipif(triton.INTERPRETED, reason="the interpreter compiles nothing")
def test_a_misaligned_tensor_of_a_new_size_runs_what_is_compiled_for_it(
    monkeypatch: pytest.MonkeyPatch, driver: Driver
) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    dispatcher = Dispatcher(Catalog(entry_points=()))
    dispatcher.catalog.define(COPY)
    dispatcher.register(Copied())
    for n in (64, 128, 256):
        dispatcher.call("acme::copied", torch.randn(n))
    for n in (128, 256):
        x = torch.randn(n + 1)[1:]
        assert x.data_ptr() % 16
        assert dispatcher.call("acme::copied", x).equal(x)
        variant, launched = driver.launched[-1]
        assert (launched, "x" in variant.spec["aligned"]) == (n, False)
    assert dispatcher.bound("acme::copied").misses == 3
