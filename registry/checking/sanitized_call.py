"""A program for compute-sanitizer: binds an implementation for an example of its op, and calls it once."""

from __future__ import annotations

import json
import sys

import torch

from ..device import Device
from .gpu_steps import first_plan
from .steps import Found
from .target import catalog_with_plugin


def main(told: str) -> None:
    """Make one call. ``told``: target, op, name and device as JSON."""
    given = json.loads(told)
    catalog = catalog_with_plugin(given["target"])
    device = Device.of(given["device"])
    made = first_plan(catalog.op(given["op"]), catalog.implementation(given["op"], given["name"]), device)
    if isinstance(made, Found):
        sys.stdout.write(f"refused: {made.reason.splitlines()[0]}\n")
        return
    plan, values = made
    with torch.no_grad():
        plan(*values)
        torch.cuda.synchronize(device.torch)


if __name__ == "__main__":
    main(sys.argv[1])
