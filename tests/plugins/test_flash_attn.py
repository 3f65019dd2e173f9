"""registry_flash_attn without a GPU: its hooks, its reasons, and what it makes of the library's functions."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

import pytest
import torch

import registry_flash_attn
from registry.backends import library_function
from registry.contracts import BOX
from registry.contracts.attention.attention import attention_reference
from registry.contracts.attention.attention_backward import attention_backward_reference
from registry.contracts.attention.decode import attention_decode_reference
from registry.device import Device
from registry.errors import NotLaunchedError
from registry.implementation import Implementation
from registry.problem import Problem, Value
from registry.testing import check_implementation
from registry_flash_attn import backward, decode, forward
from registry_flash_attn.generations import FA2, FA3, FA4, Generation, window_of

H200 = Device("cuda", 0, "NVIDIA H200", "sm_90", 132, 141 << 30, 60 << 20)
B200 = Device("cuda", 0, "NVIDIA B200", "sm_100", 148, 180 << 30, 126 << 20)
A100 = Device("cuda", 0, "NVIDIA A100", "sm_80", 108, 80 << 30, 40 << 20)
V100 = Device("cuda", 0, "NVIDIA V100", "sm_70", 80, 32 << 30, 6 << 20)
OPS = {op.name: op for op in BOX}
HEADS: Mapping[str, Value] = {"batch": 2, "heads": 4, "kv_heads": 2, "head_dim": 16, "dtype": "bfloat16"}
PROMPT: Mapping[str, Value] = {
    "q_len": 5, "kv_len": 9, "causal": True, "mask": "none", "softcap": False, "span": False, **HEADS,
}  # fmt: skip
CACHE: Mapping[str, Value] = {
    "q_len": 2, "kv_len": 24, "page": 8, "span": False, "softcap": False, "lengths": "uniform", "kv_dtype": "auto",
    **HEADS,
}  # fmt: skip
NAMES = {
    "attention": ["fa4", "fa4_split", "fa3", "fa2"],
    "attention_backward": ["fa4", "fa3", "fa2"],
    "attention_decode": ["fa4", "fa4_split", "fa3", "fa2"],
}


def implementations(op: str) -> list[Implementation]:
    found: list[Implementation] = getattr(registry_flash_attn, f"{op}_implementations")()
    return found


def problem_of(op: str, **dims: Value) -> Problem:
    return OPS[op].problem_of({**(CACHE if op == "attention_decode" else PROMPT), **dims})


def reasons(op: str, generation: Generation, device: Device, **dims: Value) -> list[str]:
    of = {"attention": forward.forward_reasons, "attention_backward": backward.backward_reasons}
    return list(of.get(op, decode.decode_reasons)(generation, problem_of(op, **dims), device))


def test_hooks_bring_every_generation_of_each_op() -> None:
    found = {op: [one.name for one in implementations(op)] for op in NAMES}
    assert found == {op: [f"flash_attn.{name}" for name in names] for op, names in NAMES.items()}
    assert not any(one.deterministic for one in implementations("attention_backward"))


@pytest.mark.parametrize("op", NAMES)
def test_what_it_runs_has_no_reason(op: str) -> None:
    assert not reasons(op, FA4, H200)
    assert not reasons(op, FA3, H200, head_dim=256)
    assert not reasons(op, FA2, A100, **({"page": False} if op == "attention_decode" else {}))


@pytest.mark.parametrize(
    ("op", "generation", "device", "dims", "part"),
    [
        ("attention", FA3, A100, {}, "of compute capability 9.x, this is sm_80"),
        ("attention", FA4, V100, {}, "of compute capability 8.x, 9.x, 10.x, 11.x, 12.x, this is sm_70"),
        ("attention", FA4, H200, {"dtype": "float32"}, "dtype is float32, expected bfloat16 or float16"),
        ("attention", FA4, H200, {"head_dim": 20}, "head_dim is 20, expected a multiple of 8 up to 256"),
        ("attention", FA4, B200, {"head_dim": 192}, "head_dim is 192, on this GPU it takes 256 or at most 128"),
        ("attention", FA4, H200, {"mask": "bool"}, "it has no bool mask"),
        ("attention", FA2, A100, {"q_len": 12}, "some queries see no key"),
        ("attention_backward", FA4, A100, {}, "its gradient needs compute capability 9.0, this is sm_80"),
        ("attention_decode", FA4, H200, {"kv_dtype": "float8_e4m3fn"}, "not float8_e4m3fn"),
        ("attention_decode", FA2, H200, {}, "a page has 8 slots, expected a multiple of 256"),
        ("attention_decode", FA4, A100, {}, "it takes no pages on sm_80"),
    ],
)
def test_every_reason_is_given(
    op: str, generation: Generation, device: Device, dims: dict[str, Value], part: str
) -> None:
    assert [part in one for one in reasons(op, generation, device, **dims)] == [True]


def test_keys_are_split_on_datacentre_blackwell_alone() -> None:
    for of, op in ((forward.split_forward_reasons, "attention"), (decode.split_decode_reasons, "attention_decode")):
        assert not list(of(problem_of(op), B200))
        assert ["it splits keys" in one for one in of(problem_of(op), H200)] == [True]


@pytest.mark.skipif(find_spec("flash_attn") is not None, reason="FlashAttention is installed")
@pytest.mark.parametrize("op", NAMES)
def test_without_a_library_it_is_named(op: str) -> None:
    for one in implementations(op):
        library = {"fa4": "flash-attn-4", "fa3": "flash-attn-3", "fa2": "flash-attn"}[one.name[11:14]]
        assert list(one.unsupported(problem_of(op), H200)) == [f"{library} is not installed (pip install {library})"]


def test_a_window_that_is_not_causal_has_two_sides() -> None:
    assert window_of(FA4, -1, True) == (None, None)
    assert window_of(FA2, -1, False) == (-1, -1)
    assert window_of(FA3, 5, True) == (5, 0)
    assert window_of(FA4, 5, False) == (5, 5)


def _op_window(causal: bool, window: tuple[int | None, int | None]) -> int:
    before, after = (-1 if side is None else side for side in window)
    assert after == (-1 if before < 0 else 0 if causal else before)
    return before


class _Fourth:
    """The functions of flash-attn-4 with what is used of their signatures, by the ops' own references."""

    def flash_attn_func(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, softmax_scale: float | None, causal: bool,
        window_size: tuple[int | None, int | None], softcap: float, num_splits: int, return_lse: bool,
    ) -> Any:  # fmt: skip
        assert return_lse
        assert num_splits in (0, 1)
        return attention_reference(q, k, v, None, causal, softmax_scale, softcap, _op_window(causal, window_size))

    def flash_attn_varlen_func(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, seqused_k: torch.Tensor,
        page_table: torch.Tensor | None, softmax_scale: float | None, causal: bool,
        window_size: tuple[int | None, int | None], softcap: float, num_splits: int, return_lse: bool,
    ) -> Any:  # fmt: skip
        assert causal
        assert return_lse
        assert num_splits in (0, 1)
        window = _op_window(True, window_size)
        return attention_decode_reference(q, k, v, seqused_k, page_table, None, None, softmax_scale, softcap, window)

    def _flash_attn_bwd(  # noqa: PLR0917
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, dout: torch.Tensor,
        lse: torch.Tensor, softmax_scale: float | None = None, causal: bool = False, softcap: float = 0.0,
        window_size_left: int | None = None, window_size_right: int | None = None,
    ) -> Any:  # fmt: skip
        window = _op_window(causal, (window_size_left, window_size_right))
        how = (causal, softmax_scale, softcap, window)
        return attention_backward_reference(dout, q, k, v, None, out, lse, *how)


class _Third:
    """The functions of flash-attn-3 with what is used of their signatures, by the ops' own references."""

    def flash_attn_func(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, softmax_scale: float | None, causal: bool,
        window_size: tuple[int, int], softcap: float, return_attn_probs: bool,
    ) -> Any:  # fmt: skip
        assert return_attn_probs
        return attention_reference(q, k, v, None, causal, softmax_scale, softcap, _op_window(causal, window_size))

    def flash_attn_with_kvcache(
        self, q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, *, cache_seqlens: torch.Tensor,
        page_table: torch.Tensor | None, softmax_scale: float | None, causal: bool, window_size: tuple[int, int],
        softcap: float, return_softmax_lse: bool,
    ) -> Any:  # fmt: skip
        assert causal
        assert return_softmax_lse
        how = (softmax_scale, softcap, _op_window(True, window_size))
        found = attention_decode_reference(q, k_cache, v_cache, cache_seqlens, page_table, None, None, *how)
        return *found, None, None

    def _flash_attn_backward(
        self, dout: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor,
        softmax_lse: torch.Tensor, *, dq: torch.Tensor, dk: torch.Tensor, dv: torch.Tensor, softmax_scale: float,
        is_causal: bool, window_size_left: int, window_size_right: int, softcap: float, deterministic: bool,
    ) -> torch.Tensor:  # fmt: skip
        window = _op_window(is_causal, (window_size_left, window_size_right))
        how = (is_causal, softmax_scale, softcap, window)
        found = attention_backward_reference(dout, q, k, v, None, out, softmax_lse, *how)
        for made, each in zip((dq, dk, dv), found, strict=True):
            made.copy_(each)
        return softmax_lse


FORMS: list[Mapping[str, Value]] = [{}, {"causal": False, "span": 3, "softcap": True}]
CASES: list[tuple[str, int, Any, list[Mapping[str, Value]]]] = [
    ("attention", 0, _Fourth(), FORMS),
    ("attention", 2, _Third(), FORMS),
    ("attention_backward", 0, _Fourth(), FORMS[1:]),
    ("attention_backward", 1, _Third(), FORMS[:1]),
    ("attention_decode", 0, _Fourth(), [{}, {"page": False, "span": 4}]),
    ("attention_decode", 1, _Fourth(), [{"softcap": True}]),
    ("attention_decode", 2, _Third(), [{"softcap": True}]),
]


@pytest.mark.parametrize(("op", "place", "module", "given"), CASES)
@pytest.mark.usefixtures("one_thread")
@pytest.mark.few(2)
def test_what_is_made_of_its_functions_is_the_op(
    op: str, place: int, module: Any, given: list[Mapping[str, Value]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for each in (forward, backward, decode):
        monkeypatch.setattr(each, "library", lambda _: module)
    monkeypatch.setattr(library_function, "installed_version", lambda _: "4.0.0")
    own = copy.copy(implementations(op)[place])
    refused = own.unsupported
    # on the CPU, which the library does not run on
    vars(own)["device_types"] = frozenset({"cpu"})
    vars(own)["unsupported"] = lambda *asked: [
        one for one in refused(*asked) if "NVIDIA" not in one and "splits" not in one
    ]
    problems = [problem_of(op, **dims) for dims in given]
    assert len(check_implementation(own, OPS[op], problems=problems, device="cpu").checked) > len(given)


def test_a_version_without_the_gradient_is_unsupported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backward, "library", lambda _: object())
    values = OPS["attention_backward"].inputs(problem_of("attention_backward"), "normal", torch.Generator())
    with pytest.raises(NotLaunchedError, match="flash-attn-4 has no _flash_attn_bwd"):
        backward.attention_backward(FA4, *values)


@pytest.mark.parametrize("name", ["flash_attn_func", "flash_attn_varlen_func", "_flash_attn_bwd"])
def test_the_stand_in_has_the_signatures_of_the_fourth_generation(name: str) -> None:
    module = pytest.importorskip("flash_attn.cute.interface")
    taken = inspect.signature(getattr(_Fourth(), name)).parameters
    known = [*inspect.signature(getattr(module, name)).parameters]
    by_place = [each.name for each in taken.values() if each.kind is each.POSITIONAL_OR_KEYWORD]
    assert by_place == known[: len(by_place)]
    assert {*taken} <= {*known}
