"""The file of landscapes: gzipped JSON, configurations as places in their domains.

    {"format": "kernel-registry landscapes", "version": 1,
     "hardware": {...}, "software": {...}, "protocol": {...},     as tuning_db stores them
     "noise": 0.004,                         relative difference of two measurements of one candidate
     "problems": [
       {"op": "softmax", "dims": {...}, "static": ["cols", "dtype"], "dynamic": ["rows"],
        "choices": [
          {"implementation": "triton.row", "preference": 2.0, "domains": {"num_warps": [1, 2, 4]}, "default": [1],
           "configs": [[0], [1], [2]],       one entry a candidate from here on
           "status": ["ok", "ok", "crash"], "median_us": [5.1, 4.9, null], "censored": [0, 0, 0],
           "variants": [[0], [1], [2]]}]}]}   equal numbers in one file: the same compiled variant

Problems are in the order in which they were tuned.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

FORMAT = "kernel-registry landscapes"
VERSION = 1


@dataclass(frozen=True)
class Point:
    """One candidate's outcome. ``places``: where each parameter's value stands in its domain."""

    places: tuple[int, ...]
    status: str
    median_us: float | None
    censored: bool = False
    variants: tuple[int, ...] = ()

    @property
    def time_us(self) -> float | None:
        """The time in µs that a search is told: the median if the candidate was right, else None."""
        return self.median_us if self.status == "ok" else None


@dataclass(frozen=True)
class Measured:
    """An implementation on a problem: its domains, and every valid configuration with its outcome."""

    implementation: str
    domains: Mapping[str, tuple[Any, ...]]
    default: tuple[int, ...]
    points: tuple[Point, ...]
    preference: float = 0.0

    def config(self, places: Sequence[int]) -> dict[str, Any]:
        """The configuration at these places."""
        return {name: values[place] for (name, values), place in zip(self.domains.items(), places, strict=True)}


@dataclass(frozen=True)
class Landscape:
    """One problem with every candidate measured. ``noise`` is relative; times closer than it are ties."""

    op: str
    dims: Mapping[str, Any]
    static: tuple[str, ...]
    dynamic: tuple[str, ...]
    choices: tuple[Measured, ...]
    noise: float

    @cached_property
    def best_us(self) -> float:
        """The time in µs of the fastest right candidate."""
        return min(point.time_us for choice in self.choices for point in choice.points if point.time_us is not None)

    @property
    def size(self) -> int:
        """The number of candidates."""
        return sum(len(choice.points) for choice in self.choices)

    def without(self, prefix: str) -> Landscape:
        """This landscape without the implementations whose names begin with ``prefix``."""
        kept = tuple(choice for choice in self.choices if not choice.implementation.startswith(prefix))
        return replace(self, choices=kept)

    @property
    def name(self) -> str:
        """The op and the dimensions, as text for people."""
        return f"{self.op} " + " ".join(f"{name}={value}" for name, value in self.dims.items())


@dataclass(frozen=True)
class File:
    """Landscapes of one environment."""

    landscapes: tuple[Landscape, ...]
    hardware: Mapping[str, Any]
    software: Mapping[str, Any]
    protocol: Mapping[str, Any]


def load(path: Path) -> File:
    """Read a file. Raises ValueError for one that is something else."""
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        data = json.load(stream)
    if data.get("format") != FORMAT or data.get("version") != VERSION:
        raise ValueError(f"{path}: format {data.get('format')!r} version {data.get('version')!r}, expected {VERSION}")
    landscapes = tuple(_landscape(problem, data["noise"]) for problem in data["problems"])
    return File(landscapes, data["hardware"], data["software"], data["protocol"])


def save(path: Path, file: File) -> None:
    """Write a file; the same content gives the same bytes."""
    noises = {landscape.noise for landscape in file.landscapes}
    if len(noises) != 1:
        raise ValueError(f"{path}: a file has one noise, got {sorted(noises)}")
    data = {
        "format": FORMAT,
        "version": VERSION,
        "hardware": dict(file.hardware),
        "software": dict(file.software),
        "protocol": dict(file.protocol),
        "noise": noises.pop(),
        "problems": [_plain(landscape) for landscape in file.landscapes],
    }
    text = json.dumps(data, separators=(",", ":"))
    with path.open("wb") as raw, gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as stream:
        stream.write(text.encode())


def files(folder: Path) -> list[Path]:
    """The files of a folder, by name."""
    return sorted(folder.glob("*.json.gz"))


def numbered(keys: Iterable[str], numbers: dict[str, int]) -> tuple[int, ...]:
    """Small numbers for variant keys; ``numbers`` holds those given so far."""
    return tuple(numbers.setdefault(key, len(numbers)) for key in keys)


def _landscape(problem: Mapping[str, Any], noise: float) -> Landscape:
    return Landscape(
        op=problem["op"],
        dims=problem["dims"],
        static=tuple(problem["static"]),
        dynamic=tuple(problem["dynamic"]),
        choices=tuple(_measured(choice) for choice in problem["choices"]),
        noise=noise,
    )


def _measured(choice: Mapping[str, Any]) -> Measured:
    columns = zip(
        choice["configs"], choice["status"], choice["median_us"], choice["censored"], choice["variants"], strict=True
    )
    points = tuple(
        Point(tuple(places), status, median, bool(censored), tuple(variants))
        for places, status, median, censored, variants in columns
    )
    domains = {name: tuple(values) for name, values in choice["domains"].items()}
    return Measured(choice["implementation"], domains, tuple(choice["default"]), points, choice["preference"])


def _plain(landscape: Landscape) -> dict[str, Any]:
    return {
        "op": landscape.op,
        "dims": dict(landscape.dims),
        "static": list(landscape.static),
        "dynamic": list(landscape.dynamic),
        "choices": [
            {
                "implementation": choice.implementation,
                "preference": choice.preference,
                "domains": {name: list(values) for name, values in choice.domains.items()},
                "default": list(choice.default),
                "configs": [list(point.places) for point in choice.points],
                "status": [point.status for point in choice.points],
                "median_us": [_rounded(point.median_us) for point in choice.points],
                "censored": [int(point.censored) for point in choice.points],
                "variants": [list(point.variants) for point in choice.points],
            }
            for choice in landscape.choices
        ],
    }


def _rounded(median_us: float | None) -> float | None:
    """The time to six significant digits, four more than noise needs."""
    return None if median_us is None else float(f"{median_us:.6g}")
