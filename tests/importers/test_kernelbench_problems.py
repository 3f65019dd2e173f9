"""Pairs in KernelBench's form end with the right verdicts: right solutions rank, wrong and cheating ones are out."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
try:
    from problems.layers import LAYERS
    from problems.matmuls import MATMULS
    from problems.pair import Pair
    from problems.rows import ROWS
finally:
    sys.path.pop(0)

from registry.device import Device
from registry.discovery.catalog import Catalog
from registry.importers.detection import imported
from registry.importers.plugin_file import entrants, plugin_text
from registry.importers.race import RaceStanding, race
from registry.tuner.options import TuneOptions

PAIRS = (*MATMULS, *ROWS, *LAYERS)


def raced(pairs: tuple[Pair, ...], folder: Path) -> dict[str, RaceStanding]:
    """Standings by implementation's name without the vendor."""
    catalog, problems, submissions = Catalog(), [], []
    for pair in pairs:
        there = imported(pair.write(folder))
        found, refused = entrants([str(folder / pair.name)], there.name, there)
        assert not refused
        file = folder / f"plugin_{pair.name}.py"
        file.write_text(plugin_text(there.name, there, found))
        catalog.load_file(file)
        problems += [catalog.op(there.name).problem_of(dims) for dims in there.problems()]
        submissions += found
    standings = race(
        problems, submissions, {}, catalog=catalog, device=Device.of("cpu"), options=TuneOptions(),
    )  # fmt: skip
    return {one.label.removesuffix(".py"): one for one in standings if one.is_submission}


def test_there_are_thirty_problems_of_many_families() -> None:
    assert len(PAIRS) >= 40
    assert not [name for name, count in Counter(pair.name for pair in PAIRS).items() if count > 1]
    assert all(pair.out for pair in PAIRS)


@pytest.mark.thorough
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("pairs", [MATMULS, ROWS, LAYERS], ids=["matmuls", "rows", "layers"])
def test_right_solutions_rank_and_others_are_out(
    pairs: tuple[Pair, ...], tmp_path: Path, few_blocks: None, own_lock: None
) -> None:
    standings = raced(pairs, tmp_path)
    wrong = {}
    for pair in pairs:
        right = standings[f"{pair.name}_right"]
        if right.status != "ok" or right.rank == 0:
            wrong[right.label] = (right.status, right.reason)
        for told in pair.out:
            one = standings[f"{pair.name}_{told}"]
            if one.status not in {"wrong_result", "error"} or not one.reason or one.rank:
                wrong[one.label] = (one.status, one.reason)
    assert wrong == {}
