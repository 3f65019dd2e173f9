"""README.md's table of models, of what `python -m benchmarks.models --write benchmarks/results/h200/models` wrote.

python -m benchmarks.models.table            # rewrites README.md
python -m benchmarks.models.table --check    # exit code 1 when it is not what the results say
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks/results/h200/models/models.json"
PAGE = ROOT / "README.md"
BEGIN, END = "<!-- models:begin -->", "<!-- models:end -->"
SHOWN = {
    "reduce-overhead": "token, `torch.compile`, reduce-overhead",
    "graph": "token, CUDA graph of eager",
    "compile": "token, `torch.compile`",
    "eager": "token, eager",
    "prefill": "prompt, eager",
}
WAYS = {"plain": "transformers", "apply": "`apply`", "int4": "int4", "int4+head": "int4, output layer too"}

Row = Mapping[str, Any]


def table(rows: Sequence[Row]) -> str:
    """Markdown: a line for each form and batch, and of each way its milliseconds and how many times as fast it is."""
    found = {(row["form"], row["batch"], row["way"]): row for row in rows if row["ms"] is not None}
    lines = [f"| what | sequences | {' | '.join(WAYS.values())} |", f"|{' --- |' * (2 + len(WAYS))}"]
    for form, told in SHOWN.items():
        for batch in sorted({row["batch"] for row in rows if row["form"] == form}):
            cells = [_cell(found.get((form, batch, way))) for way in WAYS]
            lines.append(f"| {told} | {batch} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(row: Row | None) -> str:
    if row is None:
        return "-"
    faster = "" if row["way"] == "plain" or not row["ratio"] else f" ({1 / row['ratio']:.2f}x)"
    return f"{row['ms']:.2f}{faster}" if row["ms"] < 100 else f"{row['ms']:.0f}{faster}"


def filled(text: str, rows: Sequence[Row]) -> str:
    """``text`` with the table between its two marks."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table(rows)}\n{END}{after}"


def main(arguments: Sequence[str]) -> int:
    """Rewrite the page, or check it."""
    text, rows = PAGE.read_text(encoding="utf-8"), json.loads(RESULTS.read_text(encoding="utf-8"))["rows"]
    made = filled(text, rows)
    if "--check" in arguments:
        return int(made != text)
    PAGE.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
