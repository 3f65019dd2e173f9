"""``make bench``: everything that can be measured on this machine, one benchmark after another.

GPU benchmarks run where there is a GPU. Each prints its environment; see the module of each for its options.
"""

from __future__ import annotations

import subprocess
import sys

import torch

ALWAYS = ("cpu_kernels", "racing.cpu_linear", "racing.compiled_calls", "dispatch_overhead", "formats.accuracy")
WITH_GPU = ("winners_in_use", "against_peers", "varlen", "models", "hammer")


def main() -> int:
    """Run the benchmarks one after another; returns the largest of their exit codes."""
    names = [*ALWAYS, *(WITH_GPU if torch.cuda.is_available() else ())]
    codes = [subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=False).returncode for name in names]
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
