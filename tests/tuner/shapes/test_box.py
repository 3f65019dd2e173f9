"""Shapes files in the box are found by their names in a checkout, from any folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from registry.tuner.shapes import box

CONFIGS = Path(__file__).parents[3] / "configs"


def test_a_name_of_the_box_is_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("llm.yaml", "cpu.yaml", "smoke.yaml"):
        assert box.found(Path("configs") / name).read_text() == (CONFIGS / name).read_text()


def test_a_file_that_is_there_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    mine = Path("configs/llm.yaml")
    mine.parent.mkdir()
    mine.write_text("softmax: []")
    assert box.found(mine) == mine


@pytest.mark.parametrize(
    "name", ["llm.yaml", "configs/other.yaml", "other/configs/llm.yaml", "configs/../configs/llm.yaml"]
)
def test_any_other_name_is_left_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    assert box.found(Path(name)) == Path(name)
