"""A tensor is passed only to a pointer through which its numbers, or their bits, can be read."""

from __future__ import annotations

import pytest
import torch

from registry import Config, Device, InvalidDefinitionError, Problem
from registry.artifact import Signature
from registry.backends import CppImplementation, CppKernel
from registry.backends.kernel_signature import check_kernel
from registry.implementation import Launch
from registry.problem import Arguments, TensorSpec

SIXTEEN = (torch.float16, torch.bfloat16, torch.int16, torch.uint16)
OTHERS = (torch.float32, torch.float64, torch.int8, torch.int32, torch.int64, torch.bool)
WORDS = ("unsigned", "unsigned int", "uint32_t", "std::uint32_t", "unsigned long", "unsigned long long", "uint64_t")


class Adding(CppImplementation):
    op, name = "square", "mine.one"

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        raise NotImplementedError


def refusal(parameter: str, dtype: torch.dtype) -> str:
    """Why a C++ kernel with this parameter takes no tensor of the dtype; "" if it takes one."""
    launch = Launch(CppKernel(f"void add(const {parameter} x) {{}}", "add"), (1,), ("x",))
    signature = Signature(Arguments("square", {"x": TensorSpec((4,), dtype, (1,))}), {})
    try:
        check_kernel(Adding(), launch, signature, "C++")
    except InvalidDefinitionError as fault:
        return str(fault)
    return ""


@pytest.mark.parametrize("name", ["unsigned short", "unsigned short int", "uint16_t", "std::uint16_t"])
def test_sixteen_bits_are_read_of_sixteen_bit_numbers_and_packed_bytes(name: str) -> None:
    assert not any(refusal(f"{name} *", dtype) for dtype in (*SIXTEEN, torch.uint8))
    for dtype in OTHERS:
        assert f"a tensor of {str(dtype)[6:]}, but the parameter x is" in refusal(f"{name} *", dtype)


@pytest.mark.parametrize("name", ["short", "signed short", "short int", "int16_t", "std::int16_t"])
def test_signed_bits_are_read_of_floats_of_their_size(name: str) -> None:
    assert not any(refusal(f"{name} *", dtype) for dtype in (torch.int16, torch.float16, torch.bfloat16, torch.uint8))
    for dtype in OTHERS:
        assert f"a tensor of {str(dtype)[6:]}, but the parameter x is" in refusal(f"{name} *", dtype)


@pytest.mark.parametrize("name", ["unsigned char", "uint8_t", "std::uint8_t", *WORDS, "size_t", "std::size_t"])
def test_bytes_and_words_are_read_of_every_tensor(name: str) -> None:
    assert not any(refusal(f"{name} *__restrict__", dtype) for dtype in (*SIXTEEN, *OTHERS))


@pytest.mark.parametrize("name", ["unsigned char", "uint8_t", "unsigned short", "uint16_t", *WORDS, "size_t"])
def test_an_integer_is_no_parameter_for_a_tensor(name: str) -> None:
    assert f"a tensor, but the parameter x is {name.removeprefix('std::')}" in refusal(name, torch.float32)


def test_an_int_given_for_a_scalar_is_told_with_what_the_schema_should_say() -> None:
    launch = Launch(CppKernel("void add(double alpha) {}", "add"), (1,), ("alpha",))
    signature = Signature(Arguments("square", {"x": TensorSpec((4,), torch.float32, (1,)), "alpha": 2}), {})
    with pytest.raises(
        InvalidDefinitionError, match="declare alpha as float in the op's schema: a Scalar is an int or"
    ):
        check_kernel(Adding(), launch, signature, "C++")
