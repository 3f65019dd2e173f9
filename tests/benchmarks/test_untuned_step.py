"""The benchmark of a decode step on an untuned machine measures each way, and leaves dispatch as it was."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # see late_imports
    from benchmarks.models import untuned_step

pytestmark = pytest.mark.usefixtures("late_imports")


@pytest.mark.thorough
def test_each_way_has_a_time(capsys: pytest.CaptureFixture[str]) -> None:
    medians = untuned_step.main(["--keys", "520", "--layers", "1", "--steps", "1", "--dtype", "float32"])
    assert [*medians] == ["plain", "rules", "declared", "torch"]
    assert all(medians.values())
    assert "float32, 520 keys, 1 layers" in capsys.readouterr().out
    assert os.environ["KERNEL_REGISTRY_SHIPPED"] == "0"


def test_a_cache_without_room_for_the_filled_keys_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        untuned_step.main(["--keys", "512"])
    assert "--keys 512: expected more than 512" in capsys.readouterr().err
