"""Tensors that outlive a call, made in a thread without the caller's modes, such as inference mode or a memory pool."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch


def made_apart(make: Callable[[], torch.Tensor], device: torch.device) -> torch.Tensor:
    """The result of ``make()``, made without autograd, inference mode or autocast, and on a GPU outside of any pool.

    A compiled program that will become a CUDA graph lets its thread allocate from the graph's memory pool while it
    warms up, and refuses tensors that remain there. ``make`` runs on the caller's current stream, to keep the order.
    """
    if device.type != "cuda":
        with torch.inference_mode(False), torch.no_grad():
            return make()
    stream = torch.cuda.current_stream(device)
    made: list[torch.Tensor] = []
    faults: list[BaseException] = []

    def work() -> None:
        try:
            with torch.cuda.device(device), torch.cuda.stream(stream), torch.no_grad():
                made.append(make())
        except BaseException as fault:  # raised in the caller's thread
            faults.append(fault)

    thread = threading.Thread(target=work, name="registry-prepare")
    thread.start()
    thread.join()
    if faults:
        raise faults[0]
    return made[0]
