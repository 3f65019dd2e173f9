"""Run by test_processes.py in a process of its own: what a child does whose parent has used the GPU.

    python processes.py fork|spawn

``fork``: a CUDA tensor must give an error that says so, at once; CPU tensors work; the parent goes on.
``spawn``: everything works in the child.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import traceback

import torch

import registry


def right(device: str) -> None:
    """One call of each kind, compared."""
    x = torch.randn(8, 1024, device=device, dtype=torch.bfloat16)
    for _ in range(2):
        y = registry.call("softmax", x)
        torch.testing.assert_close(y.double(), torch.softmax(x.double(), -1), atol=2e-3, rtol=2e-2)
    weight = registry.quantize(torch.randn(256, 1024, device=device, dtype=torch.bfloat16))
    expected = x.double() @ weight.dequantize().double().T
    y = registry.call("gemm_int4", x, weight)
    torch.testing.assert_close(y.double(), expected, atol=1.0, rtol=5e-2)


def forked(x: torch.Tensor, unseen: torch.Tensor) -> int:
    """In the child: 0 when both CUDA calls are refused for the right reason and a CPU call works."""
    signal.alarm(60)  # a call that stands still ends the child, which the parent sees
    try:
        for tensor in (x, unseen):
            try:
                registry.call("softmax", tensor)
            except Exception as fault:
                text = str(fault).lower()
                if not any(word in text for word in ("fork", "initializ")):
                    sys.stderr.write(f"{type(fault).__name__}: {fault}\n")
                    return 3
                sys.stdout.write(f"refused: {type(fault).__name__}: {fault}\n")
            else:
                return 4
        right("cpu")
    except BaseException:
        traceback.print_exc()
        return 5
    return 0


def main(way: str) -> int:
    """Use the GPU, make a child, use the GPU again."""
    torch.set_num_threads(1)  # threads of OpenMP do not survive a fork
    right("cuda")
    x = torch.randn(8, 1024, device="cuda", dtype=torch.bfloat16)
    unseen = torch.randn(9, 1024, device="cuda", dtype=torch.bfloat16)
    registry.call("softmax", x)
    torch.cuda.synchronize()
    if way == "fork":
        child = os.fork()
        if child == 0:
            code = forked(x, unseen)
            sys.stdout.flush()
            os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    else:
        process = multiprocessing.get_context("spawn").Process(target=right, args=("cuda",))
        process.start()
        process.join(240)
        code = 6 if process.exitcode is None else process.exitcode
    right("cuda")
    sys.stdout.write(f"{way}: the child ended with {code}\n")
    return int(code != 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
