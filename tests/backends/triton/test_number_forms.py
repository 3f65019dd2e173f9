"""Numbers of a launch that compiled code does not tell apart."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from registry import Launch
from registry.backends.launch_numbers import numbers_of
from registry.backends.triton.variant import number_form, specialised_parameters

NUMBERS: list[Any] = [0, 1, 16, 17, 32, -16, -1, 2**31 - 1, 2**31, 2**31 - 16, 2**40, 2**40 + 1, -(2**31), -(2**31) - 1]
NUMBERS += [True, False, 0.0, 0.5]


def test_numbers_are_the_same_to_a_kernel_where_their_forms_are_equal() -> None:
    free = {"do_not_specialize": True, "do_not_specialize_on_alignment": False}
    kept = {"do_not_specialize": False, "do_not_specialize_on_alignment": False}
    names = ["y", "BLOCK", "rows", "cols"]
    parameters = [SimpleNamespace(name=name, **(free if name == "rows" else kept)) for name in names]
    kernel = type("Kernel", (), {"arg_names": names, "params": parameters})()
    narrow = [{place for place, name in ((1, "rows"), (2, "cols")) if name in specialised_parameters(kernel)}]

    def launches(place: int, number: Any) -> tuple[Launch]:
        args = ("y", number, 2) if place == 1 else ("y", 1, number)
        return (Launch(kernel, (1,), args, {"BLOCK": 64}),)

    told = set()
    for place, name in ((1, "rows"), (2, "cols")):
        for one in NUMBERS:
            numbers = numbers_of(launches(place, one), [f"a0_{place}"], None, narrow)
            for other in NUMBERS:
                same = numbers(launches(place, other)) is not None
                assert same == (number_form(kernel, name, one) == number_form(kernel, name, other)), (name, one, other)
                told.add((name, same))
    assert len(told) == 4
