"""No time is believed that a device cannot reach: what was measured on an H200 passes, what skips its work does not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import registry
from registry.contract import Floor
from registry.device import Device
from registry.discovery.catalog import Catalog
from registry.tuner.measure.roofline import Peaks

H200 = Peaks(bytes_per_us=4.917e6, flop_per_us=8192 * 132 * 1.98e3)
"""3.2 GHz of 6144 bits, and the tensor cores of 132 multiprocessors at 1.98 GHz."""
SHIPPED = Path(registry.__file__).parent / "shipped" / "nvidia-h200.jsonl"


def test_no_winner_of_an_h200_is_too_fast_and_most_would_be_at_a_fifteenth_of_their_time(catalog: Catalog) -> None:
    checked = found = 0
    for line in SHIPPED.read_text().splitlines():
        row = json.loads(line)
        if row["kind"] == "decision":
            op = catalog.op(row["decision"]["problem"]["op"])
            floor = op.floor(op.problem_of(row["decision"]["problem"]["dims"]))
            us = row["decision"]["median_us"]
            assert H200.fault(us, floor, "cold") == "", row["decision"]["problem"]
            checked += 1
            found += bool(H200.fault(us / 15.8, floor, "cold"))
    assert checked > 100
    assert found > checked / 2


def test_the_fault_says_what_was_measured_and_what_is_needed() -> None:
    floor = Floor(bytes=4_917_000, flop=2_000_000_000)
    assert H200.fault(0.95, floor, "cold") == ""
    told = "it takes 0.5 µs, where the device needs 1 µs for 4917000 bytes at its peak bandwidth: it leaves work out"
    assert H200.fault(0.5, floor, "cold") == told
    assert "2e+09 FLOP at its peak" in H200.fault(0.5, floor, "hot")
    assert H200.fault(1.2, floor, "hot") == ""


@pytest.mark.parametrize("regime", ["cold", "hot"])
def test_of_a_cpu_nothing_is_known_and_nothing_refused(regime: str) -> None:
    peaks = Peaks.of(Device.of("cpu"))
    assert peaks == Peaks()
    assert peaks.fault(1e-9, Floor(bytes=10**12, flop=10**15), regime) == ""
