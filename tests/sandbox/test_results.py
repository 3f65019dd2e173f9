"""A submission returns what is no result: NaN, an earlier result, its input changed to fit, or a result of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from registry.sandbox.trial import SandboxedSession

from .sandboxing import needs_bubblewrap, reason, unprotected

pytestmark = [needs_bubblewrap, pytest.mark.thorough]

WRONG = {
    "NaN, which equals whatever a careless judge compares it with": (
        "import torch\ndef square(x):\n    return torch.full_like(x, float('nan'))\n",
        "is nan, expected",
    ),
    "infinity": ("import torch\ndef square(x):\n    return torch.full_like(x, float('inf'))\n", "is inf, expected"),
    "the first result again": (
        "kept = []\ndef square(x):\n    kept or kept.append(x * x)\n    return kept[0]\n",
        "expected",
    ),
    "the result of the inputs that it knows by a few elements": (
        "kept = {}\ndef square(x):\n    key = tuple(x[::512].tolist())\n    if key not in kept:\n"
        "        kept[key] = x * x\n    return kept[key]\n",
        "expected|remembers what it met",
    ),
    "an input that fits its result": (
        "def square(x):\n    x.zero_()\n    return x.clone()\n",
        "changes its input x",
    ),
    "what is broadcast": ("def square(x):\n    return (x * x)[:1]\n", "shape (1,), expected (4096,)"),
    "an object that answers every comparison": (
        "class Same:\n    def __eq__(self, other):\n        return True\n    def __getattr__(self, name):\n"
        "        return self\n    def __call__(self, *a, **k):\n        return self\n"
        "def square(x):\n    return Same()\n",
        "expected a plain torch.Tensor",
    ),
    "a tensor that unpickles into a command": (
        "import os\nclass Result:\n    def __reduce__(self):\n        return os.abort, ()\n"
        "def square(x):\n    return Result()\n",
        "expected a plain torch.Tensor",
    ),
}


@pytest.mark.parametrize("which", WRONG)
def test_what_is_no_result_is_refused_with_its_reason(which: str, tmp_path: Path, session: SandboxedSession) -> None:
    text, told = WRONG[which]
    unprotected(text)(torch.ones(4096))
    status, message = reason(text, tmp_path, session)
    assert status == "wrong_result"
    assert any(part in message for part in told.split("|")), message
