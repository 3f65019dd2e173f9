"""Plans built ahead."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch

import registry
from registry import CompileError, Device
from registry.dispatch import call_answers
from registry.dispatch.dispatcher import Dispatcher
from registry.dispatch.warmup import warm

DIMS: dict[str, Any] = {"rows": 8, "cols": 16, "dtype": "float32"}


def problems(dispatcher: Dispatcher, *rows: int) -> list[registry.Problem]:
    return [dispatcher.catalog.op("softmax").problem_of({**DIMS, "rows": count}) for count in rows]


def tensors() -> int:
    """How many are alive."""
    gc.collect()
    return sum(issubclass(type(value), torch.Tensor) for value in gc.get_objects())


def test_a_warm_problem_is_a_hit(dispatcher: Dispatcher, told: Any, publish: Any) -> None:
    one = told("a.one")
    dispatcher.register(one)
    publish(DIMS, "a.one", {"block": 4})
    exact, nearest = warm(dispatcher, problems(dispatcher, 8, 9), Device.of("cpu"))
    assert (exact.implementation, exact.config, exact.step, exact.error) == ("a.one", {"block": 4}, "exact", "")
    assert nearest.step == "nearest"
    assert "a.one(block=4), exact" in str(exact)
    bound, runs = dispatcher.bound("softmax"), len(one.runs)
    misses, built = bound.misses, one.bound
    dispatcher.call("softmax", torch.randn(8, 16))
    with torch.inference_mode():
        dispatcher.call("softmax", torch.randn(8, 16), dim=-1)
    assert one.bound == built, "another mode and another form take the plan that is there"
    assert bound.misses == misses + 1
    assert len(one.runs) == runs + 2


def test_what_one_plan_serves_is_in_memory_for_each_shape_in_other_modes(monkeypatch: pytest.MonkeyPatch) -> None:
    dispatcher = Dispatcher()
    warm(dispatcher, problems(dispatcher, 8, 9), Device.of("cpu"))
    monkeypatch.setattr(call_answers, "capturing", lambda tensors: True)
    for rows in (8, 9):
        with torch.inference_mode():
            assert dispatcher.explain("softmax", torch.randn(rows, 16)).implementation == "torch.native"


def test_warming_is_no_call_of_the_program(dispatcher: Dispatcher, told: Any, tmp_path: Path) -> None:
    dispatcher.register(told("a.one"))
    with dispatcher.recorder.record(tmp_path / "shapes.yaml"):
        warm(dispatcher, problems(dispatcher, 8, 9), Device.of("cpu"))
        dispatcher.call("softmax", torch.randn(8, 16))
    recorded = (tmp_path / "shapes.yaml").read_text()
    assert "rows: 8" in recorded
    assert "count: 1" in recorded
    assert "rows: 9" not in recorded
    assert dispatcher.explain("softmax", torch.randn(8, 16)).calls == 1


def test_a_failure_does_not_stop_the_others(dispatcher: Dispatcher, told: Any) -> None:
    def odd(problem: Any) -> list[str]:
        return ["too many"] if problem.rows == 9 else []

    dispatcher.register(told("a.one", unsupported=odd))
    dispatcher.configure(mode="strict")
    assert [
        "NotTunedError" in result.error for result in warm(dispatcher, problems(dispatcher, 8, 9), Device.of("cpu"))
    ] == [
        True,
        False,
    ]
    dispatcher.configure(mode="tuned")
    first, second = warm(dispatcher, problems(dispatcher, 8, 9), Device.of("cpu"))
    assert (first.step, second.step) == ("default", "reference")
    assert "NotTunedError" not in str(first)


@pytest.mark.filterwarnings("ignore::registry.DispatchWarning")
def test_what_cannot_be_built_is_told_as_what_runs_instead(dispatcher: Dispatcher, told: Any) -> None:
    dispatcher.register(told("a.broken", 5.0, bind_fault=CompileError("no")))
    dispatcher.register(told("a.sound"))
    (result,) = warm(dispatcher, problems(dispatcher, 8), Device.of("cpu"))
    assert (result.implementation, result.error) == ("a.sound", "")


def test_nothing_stays_allocated(dispatcher: Dispatcher, told: Any) -> None:
    dispatcher.register(told("a.one"))
    before = tensors()
    warm(dispatcher, problems(dispatcher, 1, 2, 3), Device.of("cpu"))
    assert tensors() == before


def test_warmup_takes_a_file_or_a_mapping(tmp_path: Path) -> None:
    shapes = tmp_path / "shapes.yaml"
    shapes.write_text("softmax:\n  - {rows: [3, 5], cols: 24, dtype: float32}\nsquare:\n  - {n: 99, dtype: float32}\n")
    results = registry.warmup(shapes, device="cpu")
    assert [str(result.problem) for result in results] == [
        "softmax(rows=3, cols=24, dtype=float32)",
        "softmax(rows=5, cols=24, dtype=float32)",
        "square(n=99, dtype=float32)",
    ]
    assert not any(result.error for result in results)
    mapped = registry.warmup(
        {"softmax": [{"rows": 3, "cols": 24, "dtype": "float32"}, results[1].problem]}, device="cpu"
    )
    assert [result.problem for result in mapped] == [result.problem for result in results[:2]]
    packed: dict[str, Any] = {
        "m": 2,
        "n": 64,
        "k": 64,
        "group_size": 32,
        "bits": 4,
        "dtype": "bfloat16",
        "symmetric": True,
    }
    (result,) = registry.warmup({"gemm_int4": [packed]}, device="cpu")
    assert result.implementation
    assert not result.error


def test_warmup_refuses_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(registry.UnknownNameError, match="did you mean softmax"):
        registry.warmup({"softmax": [], "sofmax": []})
    with pytest.raises(registry.UnknownNameError, match="dimension"):
        registry.warmup({"softmax": [{"row": 3}]})
    with pytest.raises(registry.InvalidArgumentError, match="no problem"):
        registry.warmup({"softmax": [3]})  # type: ignore[list-item]
    with pytest.raises(registry.InvalidArgumentError, match="expected a shapes file"):
        registry.warmup([{"rows": 3}])  # type: ignore[arg-type]
    with pytest.raises(registry.ShapesFileError):
        registry.warmup(tmp_path / "none.yaml")
