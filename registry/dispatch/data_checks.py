"""The checks of data under ``KERNEL_REGISTRY_CHECK=1``: contents of tensors, which a call otherwise does not read."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from ..arguments.schema import tensors_in
from ..contract import Op
from ..contract.function_answers import refuse_verdict
from ..errors import InvalidArgumentError
from .call_answers import Asked
from .torch_side.states import nothing_to_launch
from .warning import tell_caller

VARIABLE = "KERNEL_REGISTRY_CHECK"

DataCheck = Callable[[Asked], None]
"""``check(asked)`` waits for the call's tensors, and raises an error for contents that the op does not accept."""


def checking(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether ``KERNEL_REGISTRY_CHECK`` asks for checks of data: 1, not 0 or nothing. Raises InvalidArgumentError."""
    given = environ.get(VARIABLE) or "0"
    if given not in {"0", "1"}:
        raise InvalidArgumentError(
            f"{VARIABLE}={given!r:.80}", hint="expected 1, to check the contents of tensors at each call, or 0"
        )
    return given == "1"


def refuse_wrong_data(op: Op, values: tuple[Any, ...]) -> None:
    """Raise the op's error for tensors on the CPU whose contents it does not accept, after a plan of it failed.

    Then the plan is not at fault. On another device an index beyond a table's end raises nothing at the call.
    """
    if op.check_data is not None and all(tensor.device.type == "cpu" for tensor in tensors_in(values)):
        refuse_verdict(op, "check_data", op.check_data(dict(zip(op.parsed.names, values, strict=True))))


def data_check(op: Op) -> DataCheck | None:
    """The check of a call of ``op``; None if the op declares none.

    Calls during a CUDA graph's capture, which must not wait, are not checked: the first of them is told by a
    DispatchWarning. Neither are calls without a tensor that has elements and data.
    """
    check_data = op.check_data
    if check_data is None:
        return None

    def check(asked: Asked) -> None:
        if asked.capturing:
            tell_caller(
                op, "capture", f"{op.name}: {VARIABLE}=1 checks no call of a CUDA graph's capture, which must not wait"
            )
            return
        # positions of queries count, too, where there is no key
        if nothing_to_launch([tensor for tensor in asked.tensors if tensor.numel()]) or asked.problem is None:
            return
        named: dict[str, Any] = dict(zip(op.parsed.names, asked.values, strict=True))
        refuse_verdict(op, "check_data", check_data(named))

    return check
