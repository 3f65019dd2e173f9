"""Plugin files of strangers for ``square``, which must run in a sandbox and nowhere else."""

from __future__ import annotations

from pathlib import Path

HEAD = """
import os
import registry
import torch
from registry import Implementation, Space

open(os.path.join({folder!r}, "was_here"), "w") if os.path.isdir({folder!r}) else None


class Square(Implementation):
    op, device_types = "square", frozenset({{"cpu"}})

    def bind(self, problem, config, device, built):
        def run(outputs, arguments, scratch):
            self.write(arguments[0], outputs[0], config)
        return run
"""
CHUNKS = """
class Chunks(Square):
    name = "stranger.chunks"

    def space(self, problem, device):
        return Space(CHUNKS=[2, 4, 3]).require("no three", lambda config: config["CHUNKS"] != 3)

    def default(self, problem, device):
        return {"CHUNKS": 4}

    def unsupported(self, problem, device):
        if problem.n > 1 << 20:
            yield "more than a million elements\\x1b[31m"

    def write(self, x, y, config):
        for one, result in zip(x.chunk(config["CHUNKS"]), y.chunk(config["CHUNKS"])):
            torch.mul(one, one, out=result)
"""
CHEATS = """
import gc, sys, time

for name in ("perf_counter_ns", "perf_counter", "monotonic_ns", "monotonic"):
    setattr(time, name, lambda: 0)

class Zeroes(Square):
    name = "stranger.zeroes"

    def write(self, x, y, config):
        y.zero_()

class Searches(Square):
    \"\"\"Looks for what it is compared with, in memory and in its callers' frames.\"\"\"

    name = "stranger.searches"

    def write(self, x, y, config):
        frame = sys._getframe(1)
        found = list(gc.get_objects())
        while frame is not None:
            found += frame.f_locals.values()
            frame = frame.f_back
        for one in found:
            if type(one) is torch.Tensor and one is not x and one.shape == x.shape:
                if bool((one[:8] == x[:8] * x[:8]).all()) and one.data_ptr() != y.data_ptr():
                    y.copy_(one)
                    return
"""
OFFERS = """
@registry.implements("square")
def squares():
    return [one() for one in Square.__subclasses__()]
"""


def plugin(folder: Path, *parts: str) -> Path:
    """A plugin file with these classes, which leaves a file in ``folder`` wherever it is run with that in sight."""
    file = folder / "stranger.py"
    file.write_text("".join([HEAD.format(folder=str(folder)), *parts, OFFERS]))
    return file


def was_run(folder: Path) -> bool:
    """Whether a plugin file of ``plugin`` has been run where it sees ``folder``."""
    return (folder / "was_here").exists()
