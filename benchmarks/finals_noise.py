"""The noise of real finals, as data: every round of the entrants that met in all blocks, without their names.

    python -m benchmarks.finals_noise tuning.db [more.db ...] --out benchmarks/results/h200/finals_noise.json.gz

The file has what benchmarks.finals_simulation draws from; it names no implementation, so that only the times tell which
was faster.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuning_db import Decision, Final, Store

from .arguments import output_file

MEASURED = Path(__file__).parent / "results" / "h200" / "finals_noise.json.gz"
Rounds = tuple[float, ...]


@dataclass(frozen=True)
class Measured:
    """The finals of one problem, times in µs: per block the rounds of incumbent, its copy and each challenger."""

    problem: str
    incumbent: tuple[Rounds, ...]
    copy: tuple[Rounds, ...]
    challengers: tuple[tuple[Rounds, ...], ...]


def load(path: Path = MEASURED) -> tuple[Mapping[str, Any], list[Measured]]:
    """The environment, and the finals of every problem."""
    data = json.loads(gzip.decompress(path.read_bytes()))
    return data["environment"], [
        Measured(
            one["problem"],
            _blocks(one["incumbent"]),
            _blocks(one["copy"]),
            tuple(_blocks(blocks) for blocks in one["challengers"]),
        )
        for one in data["finals"]
    ]


def extract(databases: Sequence[str]) -> Mapping[str, Any]:
    """The content of the file, as ``load`` reads it, from tuning databases of one machine."""
    environments: list[Mapping[str, Any]] = []
    finals: list[Mapping[str, Any]] = []
    for database in databases:
        with Store.open(database, create=False, migrate=False) as store:
            for decision in store.winners():
                found = _measured(decision, store.finals(decision.uid))
                if found:
                    environment = {
                        "hardware": dict(decision.environment.hardware),
                        "software": dict(decision.environment.software),
                    }
                    environments += [environment] if environment not in environments else []
                    finals.append(found)
    if len(environments) != 1:
        raise SystemExit(f"expected finals of one environment, found {len(environments)}: {environments}")
    return {"environment": environments[0], "finals": finals}


def _measured(decision: Decision, finals: Sequence[Final]) -> Mapping[str, Any] | None:
    entrants: dict[tuple[str, str], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for final in finals:
        if final.candidate is not None:
            entrants[final.role, final.candidate.key][final.block].append(float(f"{final.us:.5g}"))
    count = max((len(blocks) for blocks in entrants.values()), default=0)
    whole = {
        key: [blocks[block] for block in sorted(blocks)] for key, blocks in entrants.items() if len(blocks) == count
    }
    incumbent = next((key for role, key in whole if role == "copy"), None)
    if incumbent is None or ("candidate", incumbent) not in whole:
        return None
    return {
        "problem": f"{decision.problem.op} {json.dumps(dict(decision.problem.dims))}",
        "incumbent": whole["candidate", incumbent],
        "copy": whole["copy", incumbent],
        "challengers": [blocks for (role, key), blocks in whole.items() if role == "candidate" and key != incumbent],
    }


def _blocks(blocks: Sequence[Sequence[float]]) -> tuple[Rounds, ...]:
    return tuple(tuple(rounds) for rounds in blocks)


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("databases", nargs="+", metavar="DATABASE")
    parser.add_argument("--out", type=output_file, default=MEASURED)
    options = parser.parse_args()
    content = extract(options.databases)
    # mtime 0: the same databases give the same bytes
    options.out.write_bytes(gzip.compress(json.dumps(content, separators=(",", ":")).encode(), 9, mtime=0))
    print(f"{options.out}: finals of {len(content['finals'])} problems")


if __name__ == "__main__":
    main()
