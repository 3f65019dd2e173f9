"""What a plan's text does around its launches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from registry.dispatch.plans import written_plan
from registry.dispatch.plans.written_plan import written_call

GPU = torch.device("cuda", 1)


class Gpus:
    """The current GPU of a machine that has several, and where runs were enqueued."""

    def __init__(self, current: int) -> None:
        self.current = current
        self.ran: list[tuple[int, tuple[Any, ...]]] = []

    @contextmanager
    def on(self, device: torch.device) -> Iterator[None]:
        before, self.current = self.current, device.index
        try:
            yield
        finally:
            self.current = before

    def run(self, _outputs: Any, arguments: tuple[Any, ...], _scratch: Any) -> str:
        self.ran.append((self.current, arguments))
        if arguments[0] is None:
            raise ValueError("nothing given")
        return "done"


@pytest.mark.parametrize("current", [0, 1])
def test_a_plan_runs_with_its_gpu_current_and_leaves_the_one_that_was(
    monkeypatch: pytest.MonkeyPatch, current: int
) -> None:
    gpus = Gpus(current)
    monkeypatch.setattr(written_plan, "only_gpu", lambda: False)
    monkeypatch.setattr(written_plan, "current_device", lambda: gpus.current)
    monkeypatch.setattr(torch.cuda, "device", gpus.on)
    plan = written_call(2, GPU, gpus.run, [], [], None, returns_outputs=True)
    assert plan(3, 4) == "done"
    with pytest.raises(ValueError, match="nothing given"):
        plan(None, 4)
    assert gpus.ran == [(1, (3, 4)), (1, (None, 4))]
    assert gpus.current == current


@pytest.mark.parametrize(("device", "only"), [(GPU, True), (torch.device("cpu"), False)])
def test_where_no_other_gpu_can_be_current_nothing_is_asked(
    monkeypatch: pytest.MonkeyPatch, device: torch.device, only: bool
) -> None:
    gpus = Gpus(1)
    monkeypatch.setattr(written_plan, "only_gpu", lambda: only)
    monkeypatch.setattr(written_plan, "current_device", lambda: pytest.fail("asked"))
    assert written_call(2, device, gpus.run, [], [], None, returns_outputs=True)(3, 4) == "done"
