"""Many tensors are copied by one call of torch, or one by one where torch has no such call."""

from __future__ import annotations

import pytest
import torch

from registry.correctness import batched


@pytest.mark.parametrize("lacks_it", [False, True])
def test_each_source_is_copied_into_the_target_at_its_index(monkeypatch: pytest.MonkeyPatch, lacks_it: bool) -> None:
    if lacks_it:
        monkeypatch.setattr(batched, "_copy", None)
    memory = torch.zeros(12, dtype=torch.int16)
    targets = [memory[:4], memory[4:4], memory[5:12]]
    sources = [torch.full_like(target, number) for number, target in enumerate(targets, 1)]
    batched.copy_each(targets, sources)
    assert memory.tolist() == [1] * 4 + [0] + [3] * 7
    batched.copy_each([], [])
