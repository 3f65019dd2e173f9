"""Inlined winners are a part of the key of torch's caches of compiled code, which other processes read."""

from __future__ import annotations

from pathlib import Path

import pytest

from registry.discovery.catalog import Catalog

from .winners import publish, told_by_a_process

SIZES = {"rows": 4, "cols": 64, "dtype": "float32"}

PROGRAM = """
import json, sys, warnings
import torch, registry
from torch._dynamo.utils import counters

compiled = torch.compile(lambda x: registry.call("softmax", x) + 1, fullgraph=True)
if sys.argv[1] == "off":
    registry.configure(inline=False)
x = torch.randn(4, 64)
torch.testing.assert_close(compiled(x), torch.softmax(x, -1) + 1)
compiled(x)
found = counters["aot_autograd"]["autograd_cache_hit"], counters["inductor"]["fxgraph_cache_hit"]
explained = registry.explain("softmax", x)
print(json.dumps({"cached": max(found), "winner": explained.implementation, "calls": explained.calls}))
"""


@pytest.mark.thorough
def test_another_winner_compiles_again_and_the_same_winner_does_not(tmp_path: Path) -> None:
    """A call that is inlined is not counted; one that is not is, also by code from a cache.

    Without inlining the winner itself, which torch.compile compiles, comes from the caches.
    """
    database = tmp_path / "tuning.db"
    publish(database, Catalog(), {"softmax": ("torch.compile", SIZES)})
    assert told_by_a_process(PROGRAM, tmp_path, "on") == {"cached": 0, "winner": "torch.compile", "calls": 0}
    assert told_by_a_process(PROGRAM, tmp_path, "on") == {"cached": 1, "winner": "torch.compile", "calls": 0}
    assert told_by_a_process(PROGRAM, tmp_path, "off")["calls"] == 2
    database.unlink()
    publish(database, Catalog(), {"softmax": ("cpp.rows", SIZES)})
    assert told_by_a_process(PROGRAM, tmp_path, "on") == {"cached": 0, "winner": "cpp.rows", "calls": 2}
    assert told_by_a_process(PROGRAM, tmp_path, "on") == {"cached": 1, "winner": "cpp.rows", "calls": 2}
