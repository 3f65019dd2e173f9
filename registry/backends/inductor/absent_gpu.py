"""torch.compile for a GPU that is not here: its properties, read on its own node, are given to Inductor and Triton.

Inductor and Triton generate code from a GPU's properties, and need the GPU for three other things alone: to make it
the current one, to keep the state of its random numbers, and to load kernels that are compiled. All functions that
``assume`` replaces are private to torch (2.11 to 2.15); a compilation that needs more, such as a product that Inductor
times with and without padding, fails.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import torch

from ...errors import DeviceError
from .conditions import GpuProperties

_PASSES = "torch._inductor.fx_passes.joint_graph"


def assume(properties: GpuProperties) -> None:
    """Have Inductor compile for ``cuda:0`` with these properties from now on, for the rest of this process.

    Inductor remembers what it was told of a GPU in many places, so that a process is for one model of GPU, and must
    open none. Raises DeviceError where this build of torch cannot be told.
    """
    if torch.version.cuda is None:
        raise DeviceError("this build of torch has no CUDA", hint="a GPU's own node compiles for it")
    try:
        _tell_torch(properties)
        _tell_inductor(properties)
        _tell_triton(properties)
    except (AttributeError, ImportError) as fault:
        raise DeviceError(f"torch {torch.__version__} cannot be told of a GPU that is not here: {fault}") from fault


def _replace(owner: Any, **given: Any) -> None:
    """Set attributes that are there. Raises AttributeError for one that is not."""
    for name, value in given.items():
        getattr(owner, name)
        setattr(owner, name, value)


def _returning(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


def _tell_torch(properties: GpuProperties) -> None:
    found = SimpleNamespace(**properties)
    capability = (properties["major"], properties["minor"])
    _replace(
        torch.cuda,
        is_available=_returning(True),
        device_count=_returning(1),
        current_device=_returning(0),
        get_device_properties=_returning(found),
        get_device_capability=_returning(capability),
        get_device_name=_returning(properties["name"]),
        get_rng_state=_returning(torch.zeros(16, dtype=torch.uint8)),
        set_rng_state=_returning(None),
        _exchange_device=_returning(0),
        _maybe_exchange_device=_returning(0),
    )
    _replace(importlib.import_module("torch._subclasses.fake_tensor"), init_gpu_context=_returning(None))


def _tell_inductor(properties: GpuProperties) -> None:
    interfaces = importlib.import_module("torch._dynamo.device_interface")
    names = ("current_device", "device_count", "get_device_properties")
    taken = {name: staticmethod(getattr(torch.cuda, name)) for name in names}
    exchange = staticmethod(_returning(0))
    _replace(interfaces.CudaInterface, **taken, exchange_device=exchange, maybe_exchange_device=exchange)
    interfaces.caching_worker_device_properties["cuda"] = [SimpleNamespace(**properties)]
    interfaces.caching_worker_current_devices["cuda"] = 0
    tuner = importlib.import_module("torch._inductor.runtime.triton_heuristics").CachingAutotuner
    # a kernel is loaded, and its number of registers asked for, where the artifact is loaded
    _replace(tuner, _make_launchers=_returning(None), _dynamic_scale_rblock=_returning(None))
    passes = importlib.import_module(_PASSES)
    on_cpu = passes.lazy_init
    # patterns are traced on real tensors of the device; the same ones come of tensors in memory
    _replace(passes, lazy_init=lambda *_, **__: on_cpu(torch.device("cpu")))
    folder = passes.UniformValueConstantFolder
    _replace(folder, _deduce_value=_folding_in_memory(folder._deduce_value))


def _folding_in_memory(deduce: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """``deduce(folder, node)``, which makes one-element tensors to fold constants, on the CPU in place of the GPU."""

    def in_memory(folder: Any, node: Any) -> Any:
        given = node.kwargs
        if "device" in given:
            node.kwargs = {**given, "device": torch.device("cpu")}
        try:
            return deduce(folder, node)
        finally:
            node.kwargs = given

    return in_memory


def _tell_triton(properties: Mapping[str, Any]) -> None:
    compiler = importlib.import_module("triton.backends.compiler")
    config = importlib.import_module("triton.runtime.driver").driver
    capability = 10 * properties["major"] + properties["minor"]
    target = compiler.GPUTarget("cuda", capability, properties["warp_size"])
    driver = SimpleNamespace(
        get_current_target=_returning(target), get_current_device=_returning(0), get_current_stream=_returning(0)
    )

    def set_driver() -> None:
        config.set_active(driver)

    _replace(importlib.import_module("torch._inductor.runtime.triton_helpers"), set_driver_to_gpu=set_driver)
    set_driver()
