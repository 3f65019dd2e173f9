"""Calls with DTensors, whose operations torch spreads over a mesh of devices."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from ...arguments.schema import tensors_in
from ...contract import Op
from ...errors import InvalidArgumentError, in_a_line


def with_weights_replicated(run: Callable[..., Any], op: Op, values: tuple[Any, ...]) -> Callable[..., Any]:
    """``run`` for calls with DTensors, with plain weights converted to replicated ones.

    If all are replicated, each device runs it on its local tensors, unless it writes to them: torch could not spread a
    reference that makes tensors of its own or reads offsets. Raises InvalidArgumentError for a plain tensor beside
    DTensors that is no weight, since its placement is unknown; so does the function for what torch cannot spread.
    """
    distributed: Any = sys.modules.get("torch.distributed.tensor")  # a program with DTensors has imported it
    if distributed is None:
        return run
    spread = [one for one in tensors_in(values) if isinstance(one, distributed.DTensor)]
    if not spread:
        return run
    plain = [one for one in tensors_in(values) if not isinstance(one, distributed.DTensor)]
    _check_weights(op, values, plain)
    mesh = spread[0].device_mesh
    everywhere = [distributed.Replicate()] * mesh.ndim
    is_whole = all(one.device_mesh == mesh and list(one.placements) == everywhere for one in spread)

    def replicated(value: Any) -> Any:
        if isinstance(value, tuple | list):
            return type(value)(map(replicated, value))
        if isinstance(value, torch.Tensor) and not isinstance(value, distributed.DTensor):
            return distributed.DTensor.from_local(value, mesh, everywhere, run_check=False)
        return value

    def local(value: Any) -> Any:
        if isinstance(value, tuple | list):
            return type(value)(map(local, value))
        return value.to_local() if isinstance(value, distributed.DTensor) else value

    def run_locally(*values: Any) -> Any:
        return replicated(run(*map(local, values)))

    def run_spread(*values: Any) -> Any:
        try:
            return run(*map(replicated, values))
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as fault:  # NotImplementedError is one
            raise _not_spread(op, fault) from fault

    return run_locally if is_whole and not op.parsed.mutates else run_spread


def _not_spread(op: Op, fault: RuntimeError) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{op.name}: torch cannot spread it over a mesh: {in_a_line(fault)}",
        hint="replicate all tensors, x.redistribute(placements=[torch.distributed.tensor.Replicate()]), or call it with"
        " plain ones: x.full_tensor(), or x.to_local() where each device's part is a call of its own",
    )


def _check_weights(op: Op, values: tuple[Any, ...], plain: list[torch.Tensor]) -> None:
    weights = [name for name in op.parsed.names if name in op.weights]
    given = dict(zip(op.parsed.names, values, strict=True))
    for one in plain:
        if not any(given[name] is one for name in weights):
            name = next((name for name, value in given.items() if value is one), "one of a list")
            raise InvalidArgumentError(
                f"{op.name}: {name} is a plain tensor beside a DTensor",
                hint=f"make it one by torch.distributed.tensor.distribute_tensor({name}, mesh, placements), "
                "or the others plain by to_local() or full_tensor()",
            )
