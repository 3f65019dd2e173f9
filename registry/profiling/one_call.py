"""A program for Nsight Compute: warms one problem up, then makes the one call that is measured."""

from __future__ import annotations

import json
import sys

import torch

from ..device import Device
from ..discovery.catalog import Catalog
from ..dispatch.dispatcher import Dispatcher

_WARM_CALLS = 3


def main(told: str) -> None:
    """Make one call between the starts and stops of the CUDA profiler. ``told``: a MeasuredCall as JSON."""
    given = json.loads(told)
    catalog, device = Catalog(), Device.of(given["device"])
    for path in given["files"]:
        catalog.load_file(path)
    dispatcher = Dispatcher(catalog, database=given["database"])
    bound = dispatcher.bound(given["op"])
    problem = bound.op.problem_of(given["dims"])
    values = bound.op.draw(problem, bound.op.kinds[0], torch.Generator(device.torch).manual_seed(0))
    with torch.no_grad():
        for _ in range(_WARM_CALLS):
            bound.flat(*values)
        torch.cuda.synchronize(device.torch)
        torch.cuda.profiler.start()
        bound.flat(*values)
        torch.cuda.synchronize(device.torch)
        torch.cuda.profiler.stop()


if __name__ == "__main__":
    main(sys.argv[1])
