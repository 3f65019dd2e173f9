"""Variants of torch.compile that a process elsewhere compiles: found, loaded and right where they are tuned."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from registry.backends.inductor import InductorImplementation
from registry.backends.inductor.conditions import GpuProperties, conditions, differing
from registry.device import Device
from registry.discovery.catalog import Catalog
from registry.fleet.on_ray import ahead_process
from registry.fleet.on_ray.actors import ArtifactShelf
from registry.fleet.on_ray.ahead_process import AheadFiles, AheadProcess
from registry.fleet.on_ray.artifact_files import digest_of, install
from registry.fleet.on_ray.compiling_ahead import AheadVariant, key_of, variants_ahead
from registry.fleet.on_ray.described_device import DescribedDevice
from registry.problem import Problem
from registry.tuner.limits import Budget, Limits
from registry.tuner.options import TuneOptions
from registry.tuner.processes import spawning
from registry.tuner.processes.process import Child
from registry.tuner.run import tune

from ... import fresh

CPU = DescribedDevice.here("cpu")
GPU: GpuProperties = {
    "name": "NVIDIA H200", "major": 9, "minor": 0, "multi_processor_count": 132, "warp_size": 32,
    "regs_per_multiprocessor": 65536, "max_threads_per_block": 1024, "max_threads_per_multi_processor": 2048,
    "shared_memory_per_block": 49152, "shared_memory_per_block_optin": 232448, "L2_cache_size": 60 << 20,
    "shared_memory_per_multiprocessor": 233472, "total_memory": 141 << 30,
}  # fmt: skip
H200 = DescribedDevice(Device("cuda", 0, "NVIDIA H200", "sm_90", 132, 141 << 30, 60 << 20), GPU, conditions(GPU))
SOFTMAX = Problem("softmax", {"rows": 64, "cols": 512, "dtype": "float32"})
FAULTY = Path(__file__).parent / "faulty_functions.py"


def variant_of(
    catalog: Catalog, name: str, problem: Problem = SOFTMAX, described: DescribedDevice = CPU
) -> AheadVariant:
    (found,) = variants_ahead(problem, catalog, described.device, [name])
    return found


def _forked(module: str, arguments: list[str], environment: Mapping[str, str], *, fresh: bool, **limits: Any) -> Child:
    """A process that is forked although it asks for a fresh one, with the folder for temporary files of this process.

    There torch's header is, which Inductor precompiles for C++. In the folder of the template it would be made again,
    which takes 7 s of a core.
    """
    assert fresh
    return Child(module, arguments, {**environment, "TMPDIR": tempfile.gettempdir()}, **limits)


@pytest.fixture(scope="module")
def warmed() -> None:
    """The template of processes imports torch's compiler, meanwhile: a process forked before that imports its own."""
    spawning.warm("registry.backends.inductor.warm:import_without_a_look", *InductorImplementation.preloads)


@pytest.fixture(scope="module")
def forked(warmed: None) -> Iterator[None]:
    """Processes are forked from a template that has imported torch's compiler: executed, each takes 7 s of a core.

    They are executed without this, as tests/tuner/processes does others, and as one here is in thorough runs.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ahead_process, "Child", _forked)
        yield


@pytest.fixture(scope="module")
def on_cpu(forked: None) -> Iterator[AheadProcess]:
    """Compiles for this CPU."""
    with closing(AheadProcess({}, [FAULTY])) as process:
        yield process


def compiled(process: AheadProcess, catalog: Catalog, described: DescribedDevice) -> AheadFiles:
    return process.compile(variant_of(catalog, "torch.compile", SOFTMAX, described), described.device.target)


def installed(files: Mapping[str, bytes], folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache that is empty but for these files, from now on this process's."""
    monkeypatch.setenv("KERNEL_REGISTRY_CACHE", str(folder))
    assert all(install(path, content, digest_of(content)) for path, content in files.items())
    return folder


def compiled_files(cache: Path) -> dict[Path, int]:
    """The artifacts, libraries and headers in a cache, with the times at which they were written."""
    return {path: path.stat().st_mtime_ns for path in cache.rglob("*") if path.suffix in {".bin", ".so", ".gch"}}


@pytest.mark.parametrize("how", ["forked", pytest.param("executed", marks=pytest.mark.thorough)])
@pytest.mark.thorough
def test_a_gpu_that_is_not_here_is_compiled_for(
    how: str, catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warmed: None
) -> None:
    if how == "forked":
        monkeypatch.setattr(ahead_process, "Child", _forked)
    with closing(AheadProcess(H200.gpu, ())) as process:
        made = compiled(process, catalog, H200)
    assert not made.fault
    (path,) = made.files
    assert b"cubin" in made.files[path]
    cache = installed(made.files, tmp_path / "other", monkeypatch)
    ahead = variant_of(catalog, "torch.compile", SOFTMAX, H200)
    found = ahead.implementation.compile(ahead.variant, H200.device.target)
    assert Path(found.path) == cache / path


@pytest.mark.usefixtures("few_blocks")
@pytest.mark.thorough
def test_a_variant_for_the_cpu_runs_right_in_a_worker_that_compiles_nothing(
    on_cpu: AheadProcess, catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = compiled(on_cpu, catalog, CPU)
    assert not made.fault
    assert [Path(path).suffix for path in made.files][-1] == ".bin"
    cache = installed(made.files, tmp_path / "other", monkeypatch)
    before = compiled_files(cache)
    assert before
    options = TuneOptions(Budget(trials=1), implementations=["torch.compile"])
    # what other tests take of the cores meanwhile decides nothing here
    monkeypatch.setattr("registry.tuner.decide.contest_facts.DISTURBED", {"cpu": math.inf})
    (result,) = tune(
        [SOFTMAX], catalog=catalog, device=CPU.device, database=str(tmp_path / "tuning.db"), options=options
    )
    assert (result.implementation, result.verdict) == ("torch.compile", "new"), result.reason
    assert compiled_files(cache) == before


@pytest.mark.thorough
def test_what_is_left_to_its_own_node_costs_nothing_else(on_cpu: AheadProcess, catalog: Catalog) -> None:
    """A function that ends its process, one that Inductor refuses, and after them one that is right."""
    catalog.load_file(str(FAULTY))
    square = Problem("square", {"n": 4096, "dtype": "float32"})
    made = [
        on_cpu.compile(variant_of(catalog, name, square), CPU.device.target)
        for name in ("faulty.dying", "faulty.broken", "faulty.right")
    ]
    dying, broken, right = made
    assert "ended: exit code 7" in dying.fault
    assert "faulty.broken" in broken.fault
    assert not right.fault
    assert [bool(one.files) for one in made] == [False, False, True]


@pytest.mark.usefixtures("forked")
@pytest.mark.thorough
def test_a_compiler_that_hangs_is_ended(catalog: Catalog) -> None:
    catalog.load_file(str(FAULTY))
    square = Problem("square", {"n": 4096, "dtype": "float32"})
    with closing(AheadProcess({}, [FAULTY], Limits(compile=1))) as process:
        assert "more than 1 s" in process.compile(variant_of(catalog, "faulty.slow", square), CPU.device.target).fault


def test_a_torch_that_cannot_be_told_of_a_gpu_leaves_it_to_its_node() -> None:
    code = (
        "import torch; del torch.cuda._exchange_device\n"
        "from registry.backends.inductor import absent_gpu\n"
        "from registry.errors import DeviceError\n"
        f"try: absent_gpu.assume({GPU!r})\n"
        "except DeviceError as fault: print(fault.message)"
    )
    done = fresh.run("-c", code)
    assert done.returncode == 0, done.stderr
    assert "cannot be told of a GPU that is not here" in done.stdout
    assert "_exchange_device" in done.stdout


@pytest.mark.parametrize("changed", ["torch", "triton", "python", "C++ compiler and instruction set", "CPU"])
@pytest.mark.few(2)
def test_an_artifact_goes_to_no_device_with_other_conditions(catalog: Catalog, changed: str) -> None:
    other = replace(CPU, conditions={**CPU.conditions, changed: "another"})
    assert differing(CPU.conditions, other.conditions) == [changed]
    shelf, file = ArtifactShelf(), ("inductor/x.bin", "digest", None)
    shelf.add(CPU.model, [file])
    assert shelf.since(CPU.groups, 0) == ([file], 1)
    assert shelf.since(other.groups, 0) == ([], 1)
    ahead = variant_of(catalog, "torch.compile")
    assert key_of(ahead, CPU) != key_of(ahead, other)


def test_gpus_of_an_architecture_share_all_but_what_inductor_compiles(catalog: Catalog) -> None:
    fewer: GpuProperties = {**GPU, "name": "NVIDIA H100 PCIe", "multi_processor_count": 114}
    h100 = DescribedDevice(replace(H200.device, name="NVIDIA H100 PCIe", multiprocessors=114), fewer, conditions(fewer))
    other_memory = replace(H200, gpu={**GPU, "total_memory": 1}, conditions=conditions({**GPU, "total_memory": 1}))
    assert h100.groups[0] == H200.groups[0]
    assert h100.model != H200.model == other_memory.model
    by_name = {one.implementation.name: one for one in variants_ahead(SOFTMAX, catalog, H200.device, ())}
    assert key_of(by_name["torch.compile"], H200) != key_of(by_name["torch.compile"], h100)
    assert key_of(by_name["triton.row"], H200) == key_of(by_name["triton.row"], h100)


def test_a_description_survives_its_way_between_nodes() -> None:
    assert DescribedDevice.from_json(H200.as_json()) == H200
    assert DescribedDevice.from_json(CPU.as_json()) == CPU
