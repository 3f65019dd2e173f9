"""OpCounts: which of the registry's ops a compiled program calls."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch


class OpCounts:
    """A backend of torch.compile that runs graphs as they are, and counts the registry's ops in them."""

    def __init__(self) -> None:
        self.graphs: list[Counter[str]] = []

    def __call__(self, graph: torch.fx.GraphModule, _: Any) -> Any:
        called = (str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        self.graphs.append(Counter(name.split(".")[1] for name in called if name.startswith("kernel_registry.")))
        return graph.forward
