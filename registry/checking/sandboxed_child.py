"""A process behind bubblewrap that makes checks: ``python -m registry.checking.sandboxed_child DESCRIPTOR LIMITS``.

What it finds travels as text. It is found by the process that also ran the plugin, which may have taken it over.
"""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Sequence

import torch

from ..sandbox import wire
from ..sandbox.limits import limit_this_process
from . import steps
from .child import STEPS


def main(arguments: Sequence[str]) -> None:
    """Answer packets with the name of a check and its arguments, until the other side goes."""
    limit_this_process(json.loads(arguments[1]))
    end = socket.socket(fileno=int(arguments[0]))
    torch.set_num_threads(2)
    while True:
        message, *_ = wire.received_by_sandbox(end)
        if message is None:
            continue
        found = steps.guarded(STEPS[message["name"]], message["arguments"])
        wire.send(end, {"ok": True, "finding": json.dumps(found._asdict())})


if __name__ == "__main__":
    main(sys.argv[1:])
