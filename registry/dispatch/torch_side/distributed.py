"""Calls with DTensors, whose operations torch spreads over a mesh of devices."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from ...arguments.schema import tensors_in
from ...contract import Op
from ...errors import InvalidArgumentError


def with_weights_replicated(run: Callable[..., Any], op: Op, values: tuple[Any, ...]) -> Callable[..., Any]:
    """``run`` with plain weights converted to replicated DTensors, if other arguments are DTensors.

    Raises InvalidArgumentError for any other plain tensor beside DTensors, whose placement is unknown.
    """
    distributed: Any = sys.modules.get("torch.distributed.tensor")  # a program with DTensors has imported it
    if distributed is None:
        return run
    spread = [one for one in tensors_in(values) if isinstance(one, distributed.DTensor)]
    plain = [one for one in tensors_in(values) if not isinstance(one, distributed.DTensor)]
    if not spread or not plain:
        return run
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
    mesh = spread[0].device_mesh
    everywhere = [distributed.Replicate()] * mesh.ndim

    def made(value: Any) -> Any:
        if any(value is one for one in plain):
            return distributed.DTensor.from_local(value, mesh, everywhere, run_check=False)
        return value

    return lambda *values: run(*map(made, values))
