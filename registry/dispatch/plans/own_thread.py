"""What outlives a call is made in a thread of its own: the caller's may be in a state that ends with the call."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch


def made_apart(make: Callable[[], torch.Tensor], device: torch.device) -> torch.Tensor:
    """What ``make`` returns, made without autograd, inference mode or autocast, and on a GPU outside of any pool.

    While it warms up, a compiled program that will be a CUDA graph has its thread allocate from the graph's own memory
    pool, and refuses what stays there. On a GPU the stream is the caller's current one, so that the order is kept.
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
        except BaseException as fault:  # it is the caller's
            faults.append(fault)

    thread = threading.Thread(target=work, name="registry-prepare")
    thread.start()
    thread.join()
    if faults:
        raise faults[0]
    return made[0]
