"""A benchmark run on a CPU: its options, its clock, its environment, and what is kept of it."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import torch

from registry.device import Device

from ..arguments import output_folder

Clock = Callable[[], int]
"""Nanoseconds."""


class CpuRun:
    """``--threads``, ``--op`` and ``--write`` of the command line; torch and the kernels get that many threads.

    With one thread the clock is the process's CPU time, which other processes of the machine disturb less.
    """

    def __init__(self, description: str, ops: Collection[str]) -> None:
        parser = argparse.ArgumentParser(description=description.splitlines()[0])
        parser.add_argument("--write", type=output_folder, help="folder for the table and its JSON")
        parser.add_argument("--threads", type=int, help="for torch and for the kernels; default: all usable cores")
        parser.add_argument("--op", choices=sorted(ops), help="only this op")
        options = parser.parse_args()
        if options.threads:
            torch.set_num_threads(options.threads)
        self.device = Device.of("cpu")
        # a team that asks for more threads than torch may use gets as many as torch
        self.threads = torch.get_num_threads()
        self.clock: Clock = time.process_time_ns if self.threads == 1 else time.perf_counter_ns
        self._op: str | None = options.op
        self._folder: Path | None = options.write
        self.environment = {
            **self.device.hardware(),
            **self.device.software(),
            "threads": self.threads,
            "clock": self.clock.__name__,
            "load": os.getloadavg()[0],
        }

    def wants(self, op: str) -> bool:
        """True if the op is to be measured."""
        return self._op in (None, op)

    def keep(self, name: str, title: str, table: str, results: list[dict[str, Any]]) -> None:
        """Write the table and the results, beside the environment, if a folder was given."""
        if self._folder is None:
            return
        name = f"{name}_{self.threads}_threads"
        (self._folder / f"{name}.md").write_text(f"# {title}\n\n{json.dumps(self.environment)}\n\n{table}")
        kept = {"environment": self.environment, "results": results}
        (self._folder / f"{name}.json").write_text(json.dumps(kept, indent=1) + "\n")
