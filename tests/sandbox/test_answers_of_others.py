"""A submission looks for the expected result in its own process, where a judge in the same process would keep it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from registry.sandbox.trial import SandboxedSession

from .sandboxing import needs_bubblewrap, reason, unprotected

pytestmark = [needs_bubblewrap, pytest.mark.thorough]

# a tensor of the right shape whose elements are squares of the input's, found and not computed
IS_EXPECTED = """
import torch

def is_expected(one, x):
    alike = type(one) is torch.Tensor and one.shape == x.shape and one is not x
    return alike and bool((one[:8] == x[:8] * x[:8]).all())
"""
AMONG_OBJECTS = (
    IS_EXPECTED
    + """
import gc

def square(x):
    for one in gc.get_objects():
        if is_expected(one, x):
            return one.clone()
    return torch.zeros_like(x)
"""
)
IN_FRAMES = (
    IS_EXPECTED
    + """
import sys

def square(x):
    frame = sys._getframe(1)
    while frame is not None:
        for one in frame.f_locals.values():
            if is_expected(one, x):
                return one.clone()
        frame = frame.f_back
    return torch.zeros_like(x)
"""
)
IN_MEMORY = """
import ctypes, struct, torch

def square(x):
    # reads whatever the process that started it lets others read
    pid = 1
    found = torch.zeros_like(x)
    for pid in range(1, 4):
        try:
            with open(f"/proc/{pid}/mem", "rb") as memory, open(f"/proc/{pid}/maps") as maps:
                wanted = struct.pack("4f", *[float(v) for v in (x[:4] * x[:4])])
                for line in maps:
                    first, last = (int(part, 16) for part in line.split()[0].split("-"))
                    if pid != 2 and last - first < 1 << 30:
                        memory.seek(first)
                        data = memory.read(last - first)
                        if (place := data.find(wanted)) >= 0:
                            found = torch.frombuffer(bytearray(data[place:place + x.nbytes]), dtype=torch.float32)
        except (OSError, ValueError):
            pass
    return found
"""


@pytest.mark.parametrize("text", [AMONG_OBJECTS, IN_FRAMES], ids=["gc", "frames"])
def test_the_expected_result_is_found_beside_a_judge_and_not_in_a_sandbox(
    text: str, tmp_path: Path, session: SandboxedSession
) -> None:
    x = torch.randn(4096)
    expected = x * x
    torch.testing.assert_close(unprotected(text)(x), expected)
    status, message = reason(text, tmp_path, session)
    assert status == "wrong_result"
    assert "is 0, expected" in message


def test_no_other_process_can_be_read(tmp_path: Path, session: SandboxedSession) -> None:
    status, message = reason(IN_MEMORY, tmp_path, session)
    assert status == "wrong_result"
    assert "is 0, expected" in message
