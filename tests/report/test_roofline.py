"""The roofline: rates below the peaks that a run has stored and below what copies reached."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from registry.report.charts import Chart
from registry.report.facts import Section, read
from registry.report.roofline import roofline
from registry.report.work import Roof, Work
from tuning_db import ProblemKey, Store

from .measured import fill_measured, gemm, work_of
from .records import fill


def section_of(path: Path) -> Section:
    with Store.open(path) as store:
        return read(store).sections[0]


def chart_of(section: Section) -> Chart:
    chart = roofline(section)
    assert chart is not None
    return chart


def test_a_run_tells_the_work_and_the_peaks(tmp_path: Path) -> None:
    section = section_of(fill_measured(tmp_path / "a.db"))
    assert [facts.work for facts in section.problems] == [Work(*work_of(gemm(m))) for m in (1, 1024)]
    assert section.roof == Roof(4.8e6, 2e9)
    assert section.roof.flop_at("bfloat16") == 1e9
    assert section.roof.flop_at("float32") == 0.0, "no tensor core multiplies it"


def test_problems_that_differ_in_intensity_stand_against_it(tmp_path: Path) -> None:
    chart = chart_of(section_of(fill_measured(tmp_path / "a.db")))
    assert (chart.x_label, chart.y_label) == ("FLOP per byte", "FLOP/s")
    assert [line.name for line in chart.lines] == ["roof", "floor", "torch.native", "triton.tile"]
    assert [caption.text for caption in chart.captions] == [
        "peak 4.8 TB/s, 1 PFLOP/s", "copies reach 4.2 TB/s",
    ]  # fmt: skip
    first = chart.readings[0]
    assert first.title == "m=1"
    assert [name for name, _, _ in first.lines] == ["triton.tile", "torch.native"], "the fastest first"
    # 2 * 4096 * 4096 FLOP in 10 µs, and 33.6 MB in 10 µs of 48 MB
    assert first.lines[0][1:] == ("3.36 TFLOP/s", "10.00 µs, 70% of the roof")


def test_a_faster_kernel_stands_higher_and_none_above_the_roof(tmp_path: Path) -> None:
    chart = chart_of(section_of(fill_measured(tmp_path / "a.db")))
    tile = next(line for line in chart.lines if line.name == "triton.tile")
    torch = next(line for line in chart.lines if line.name == "torch.native")
    assert tile.markers[0].y < torch.markers[0].y, "SVG's axis points down"
    assert torch.markers[1].y < tile.markers[1].y
    roof = next(line for line in chart.lines if line.name == "roof")
    rise, flat = roof.path.removeprefix("M").split("L")
    begin, end = (float(part.split(",")[1].split("H")[0]) for part in (rise, flat))
    assert end < begin
    assert all(marker.y > end for line in chart.lines for marker in line.markers)


def test_without_a_peak_the_copies_roof_ends_at_the_top(tmp_path: Path) -> None:
    section = replace(section_of(fill_measured(tmp_path / "a.db")), roof=None)
    chart = chart_of(section)
    (path,) = [line.path for line in chart.lines if line.path]
    assert "H" not in path, "it is nowhere flat"


def test_one_intensity_makes_a_chart_of_bandwidth(tmp_path: Path) -> None:
    section = section_of(fill(tmp_path / "a.db"))
    work = {facts.problem.key: Work(4.0 * size, 5.0 * size) for size, facts in enumerate(section.problems, 1)}
    problems = tuple(replace(facts, work=work[facts.problem.key]) for facts in section.problems)
    chart = chart_of(replace(section, problems=problems))
    assert (chart.x_label, chart.y_label) == ("bytes", "bytes/s")
    assert chart.readings[0].lines[0][1].endswith("B/s")


def test_work_that_nobody_tells_makes_no_chart_and_is_asked_for(tmp_path: Path) -> None:
    path = fill(tmp_path / "a.db")
    assert roofline(section_of(path)) is None
    asked: list[ProblemKey] = []

    def counted(problems: list[ProblemKey]) -> dict[str, Work]:
        asked.extend(problems)
        return {problems[0].key: Work(8.0, 0.0)}

    with Store.open(path) as store:
        (section,) = read(store, counted=counted).sections  # type: ignore[arg-type]
    assert len(asked) == 3
    assert section.problems[0].work == Work(8.0, 0.0)
    assert chart_of(section).y_label == "bytes/s"


@pytest.mark.parametrize(
    "details",
    [
        {"work": 5, "peaks": []},
        {"work": {gemm(1).key: "much", gemm(1024).key: [0.0, 1.0]}, "peaks": {"bytes_per_us": "fast"}},
        {"work": {gemm(1).key: [-1.0, 2.0], gemm(1024).key: [1.0]}, "peaks": {"bytes_per_us": True, "flop_per_us": 1}},
    ],
)
@pytest.mark.few(1)
def test_details_of_another_form_are_passed_over(tmp_path: Path, details: dict[str, object]) -> None:
    section = section_of(fill_measured(tmp_path / "a.db", details))
    assert (section.roof, {facts.work for facts in section.problems}) == (None, {None})
    assert roofline(section) is None


def test_products_of_8_bits_stand_below_the_peak_of_8_bits(tmp_path: Path) -> None:
    section = section_of(fill_measured(tmp_path / "a.db"))
    faster = tuple(
        replace(facts, work=Work(one.bytes, 50 * one.flop)) for facts in section.problems if (one := facts.work)
    )
    chart = chart_of(replace(section, problems=faster))
    assert chart.captions[0].text == "peak 4.8 TB/s, 2 PFLOP/s"
