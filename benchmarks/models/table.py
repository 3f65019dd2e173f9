"""README.md's table of models, of what `python -m benchmarks.models --write benchmarks/results/h200/models` wrote.

python -m benchmarks.models.table            # rewrites README.md
python -m benchmarks.models.table --check    # exit code 1 when it is not what the results say
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks/results/h200/models/models.json"
PAGE = ROOT / "README.md"
BEGIN, END = "<!-- models:begin -->", "<!-- models:end -->"
SHOWN = {
    "reduce-overhead": "token, `torch.compile`, reduce-overhead",
    "graph": "token, CUDA graph of eager",
    "max-autotune": "token, `torch.compile`, max-autotune",
    "compile": "token, `torch.compile`",
    "eager": "token, eager",
    "prefill": "prompt, eager",
}
WAYS = {
    "plain": "transformers",
    "apply": "`apply`",
    "int4": "int4",
    "torchao": "torchao's int4",
    "torchao-mslk": "torchao's int4 by MSLK",
    "gemlite": "GemLite's int4",
    "humming": "Humming's int4",
    "int4+head": "int4, output layer too",
    "fp8": "fp8",
    "torchao-fp8": "torchao's fp8",
}
"""Columns, in their order, of the ways that were measured; other ways have their names, behind them."""

Row = Mapping[str, Any]


def table(rows: Sequence[Row]) -> str:
    """Markdown: a line for each form and batch, and of each way its milliseconds and how many times as fast it is."""
    given = [row["way"] for row in rows]
    titles = {way: title for way, title in WAYS.items() if way in given}
    titles |= {way: way for way in given if way not in WAYS}
    lines = [f"| what | sequences | {' | '.join(titles.values())} |", f"|{' --- |' * (2 + len(titles))}"]
    for told, batch, cells in _cells(rows, list(titles), SHOWN):
        lines.append(f"| {told} | {batch} | {' | '.join(cells)} |")
    return "\n".join(lines)


def plain_table(rows: Sequence[Row]) -> str:
    """The table as text for a terminal, by the names of forms and ways, and a line for each fault."""
    ways = list(dict.fromkeys(row["way"] for row in rows))
    forms = {row["form"]: row["form"] for row in rows}
    lines = [("form", "batch", *ways)]
    lines += [(told, str(batch), *cells) for told, batch, cells in _cells(rows, ways, forms)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    faults = dict.fromkeys(f"{row['way']}: {row['fault']}" for row in rows if row["ms"] is None)
    return "\n".join(["milliseconds a step (times as fast as plain)", *text, *faults])


def _cells(rows: Sequence[Row], ways: Sequence[str], forms: Mapping[str, str]) -> Iterator[tuple[str, int, list[str]]]:
    """Form, batch, and a cell for each way."""
    found = {(row["form"], row["batch"], row["way"]): row for row in rows if row["ms"] is not None}
    for form, told in forms.items():
        for batch in sorted({row["batch"] for row in rows if row["form"] == form}):
            yield told, batch, [_cell(found.get((form, batch, way))) for way in ways]


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
