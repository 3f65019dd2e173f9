"""Verification, in this process: everything in the box passes, what a contract declares is respected."""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from registry.backends.cpp import CppImplementation
from registry.contract import Op
from registry.contracts import BOX, SOFTMAX, SQUARE
from registry.correctness.bits import same_bits
from registry.correctness.grad_modes import OTHER_MODES
from registry.discovery.catalog import Catalog
from registry.dispatch.plans.other_size import bound_by_call
from registry.dispatch.plans.plan import Candidate, build
from registry.dispatch.plans.two_threads import MOST_CALLS
from registry.problem import Problem, Value
from registry.tuner.measure.samplers import Sample, Sampler
from registry.tuner.verify.probe_inputs import probe_problems
from registry.tuner.verify.probes import Probes
from registry.tuner.verify.session import PARTLY, PARTLY_AGAIN, Session
from registry.tuner.verify.timed import TimedPlan
from registry.tuner.verify.verify import WrongError, verify_timed

from ...tiers import THOROUGH
from ..going_through import CPU, PROTOCOL, Custom, go_through

PACKED: Mapping[str, Value] = {"n": 64, "k": 256, "group_size": 64, "act_order": False, "dtype": "bfloat16"}
DIMS: Mapping[str, dict[str, Value]] = {
    "vector_add": {"n": 5001, "dtype": "bfloat16"},
    "square": {"n": 5001, "dtype": "float16"},
    "gelu": {"n": 5001, "dtype": "float32", "approximate": "tanh"},
    "softmax": {"rows": 3, "cols": 5000, "dtype": "bfloat16"},
    "rms_norm": {"rows": 3, "cols": 5000, "dtype": "float32"},
    **{
        op: {"m": 3, "n": 64, "k": 256, "group_size": 64, "bits": 4, "dtype": "bfloat16", "symmetric": False}
        for op in ("gemm_int4", "gemm_int4_backward")
    },
    **{
        f"gemm_{kind}": {"m": 3, **PACKED, "zeros": zeros, "bias": True}
        for kind, zeros in (
            ("int8", "none"), ("int2", "float"), ("int1", "integer"), ("w4a16", "float"), ("nf4", "none"),
        )
    },
    **{
        f"gemm_{kind}_backward": {"m": 33, **PACKED, "zeros": zeros}
        for kind, zeros in (
            ("int8", "integer"), ("int2", "none"), ("int1", "float"), ("w4a16", "integer"), ("nf4", "none"),
        )
    },
    "gemm_w4a8": {"m": 3, **PACKED, "zeros": "integer", "activation": "int8", "static": False, "bias": True},
    "gemm_w8a8": {"m": 3, **PACKED, "zeros": "none", "activation": "float8_e4m3fn", "static": True, "bias": False},
    "linear": {"m": 3, "n": 64, "k": 256, "bias": True, "dtype": "bfloat16"},
    "quantize_per_token": {
        "m": 3, "k": 300, "group_size": 128, "out_dtype": "float8_e4m3fn", "scale": False, "dtype": "bfloat16",
    },
    "scaled_mm": {
        "m": 3, "n": 33, "k": 200, "scales": "block", "bias": True, "out_dtype": "float16", "dtype": "float8_e4m3fn",
    },
    "linear_backward": {"m": 33, "n": 64, "k": 256, "bias": True, "dtype": "bfloat16"},
    "grouped_gemm": {"m": 13, "n": 64, "k": 128, "experts": 4, "routing": "skewed", "dtype": "bfloat16"},
    **{
        f"grouped_gemm_int4{gradient}": {
            "m": 13, "n": 64, "k": 128, "group_size": 32, "zeros": "none", "experts": 4, "routing": "skewed",
            "dtype": "bfloat16",
        }
        for gradient in ("", "_backward")
    },
    "grouped_scaled_mm": {
        "m": 13, "n": 64, "k": 128, "experts": 4, "routing": "skewed", "out_dtype": "bfloat16", "dtype": "int8",
    },
    "fused_moe": {
        "tokens": 13, "hidden": 64, "intermediate": 40, "experts": 4, "top_k": 2, "activation": "silu",
        "routing": "skewed", "dtype": "bfloat16",
    },
    "grouped_gemm_backward": {"m": 13, "n": 64, "k": 128, "experts": 4, "routing": "skewed", "dtype": "bfloat16"},
    "gemm_sparse24": {"m": 13, "n": 64, "k": 140, "bias": True, "dtype": "bfloat16"},
    "gemm_sparse24_backward": {"m": 13, "n": 64, "k": 140, "dtype": "bfloat16"},
    "rotary_kv_append": {
        "batch": 3, "heads": 4, "kv_heads": 2, "q_len": 2, "kv_len": 7, "head_dim": 20, "rotary_dim": 12,
        "style": "gptj", "positions": False, "dtype": "bfloat16",
    },
    "kv_cache_append": {
        "tokens": 5, "kv_heads": 3, "head_dim": 20, "block_size": 4, "kv_dtype": "float8_e4m3fn", "dtype": "bfloat16",
    },
    **{
        op: {"rows": 9, "cols": 33, "vocabulary": 12, "frequency": "skewed", "dtype": "bfloat16"}
        for op in ("embedding", "embedding_backward")
    },
    **{
        f"topk_softmax{gradient}": {
            "tokens": 5, "experts": 60, "top_k": 4, "renormalize": True, "scoring": scoring, "dtype": "bfloat16",
        }
        for gradient, scoring in (("", "softmax"), ("_backward", "sigmoid"))
    },
    "attention_decode": {
        "batch": 2, "heads": 2, "kv_heads": 1, "q_len": 2, "kv_len": 24, "head_dim": 20, "page": 8, "span": False,
        "kv_dtype": "float8_e4m3fn", "softcap": True, "lengths": "skewed", "dtype": "bfloat16",
    },
    "mla_decode": {
        "batch": 3, "heads": 5, "kv_len": 48, "kv_lora_rank": 40, "rope_dim": 12, "page": 8, "lengths": "skewed",
        "dtype": "bfloat16",
    },
    "top_k_top_p_sampling": {"rows": 5, "cols": 1001, "top_k": True, "top_p": True, "dtype": "bfloat16"},
    **{
        op: {
            "tokens": 5, "heads": 3, "kv_heads": 1, "head_dim": 20, "rotary_dim": 10, "style": style,
            "dtype": "bfloat16",
        }
        for op, style in (("rotary_embedding", "gptj"), ("apply_rotary", "neox"), ("apply_rotary_backward", "gptj"))
    },
    "fused_add_rms_norm": {"rows": 3, "cols": 1001, "weight": True, "dtype": "bfloat16"},
    **{op: {"rows": 3, "cols": 1001, "dtype": "bfloat16"} for op in ("silu_and_mul", "silu_and_mul_backward")},
    **{
        op: {"rows": 3, "cols": 1001, "approximate": "tanh", "dtype": "float16"}
        for op in ("gelu_and_mul", "gelu_and_mul_backward")
    },
    "layer_norm": {"rows": 3, "cols": 1001, "weight": True, "bias": True, "dtype": "bfloat16"},
    "layer_norm_backward": {"rows": 5, "cols": 1001, "weight": True, "bias": True, "dtype": "float16"},
    **{
        op: {"rows": 5, "cols": 1001, "reduction": reduction, "weight": weight, "dtype": "bfloat16"}
        for op, reduction, weight in (("cross_entropy", "mean", False), ("cross_entropy_backward", "none", True))
    },
    **{
        f"fused_linear_cross_entropy{gradient}": {
            "rows": 5, "cols": 1001, "k": 24, "reduction": reduction, "bias": True, "dtype": "bfloat16",
        }
        for gradient, reduction in (("", "mean"), ("_backward", "none"), ("_gradients", "mean"))
    },
    **{
        f"attention{gradient}": {
            "batch": 2, "heads": 2, "kv_heads": 1, "q_len": 5, "kv_len": 18, "head_dim": 12, "causal": True,
            "mask": "additive", "softcap": True, "span": 7, "dtype": "bfloat16",
        }
        for gradient in ("", "_backward")
    },
    **{
        f"attention_varlen{gradient}": {
            "sequences": 3, "heads": 2, "kv_heads": 1, "total_q": 11, "total_k": 40, "head_dim": 12, "causal": True,
            "softcap": True, "span": 7, "lengths": "skewed", "dtype": "bfloat16",
        }
        for gradient in ("", "_backward")
    },
    "square_backward": {"n": 5001, "dtype": "bfloat16"},
    "gelu_backward": {"n": 5001, "dtype": "float16", "approximate": "none"},
    "softmax_backward": {"rows": 3, "cols": 5000, "dtype": "float32"},
    "rms_norm_backward": {"rows": 3, "cols": 5000, "dtype": "bfloat16"},
}  # fmt: skip


LIKE_OTHERS = (
    "gemm_int1", "gemm_int2", "gemm_w4a16", "gemm_nf4", "gemm_w4a8", "silu_and_mul",
    "fused_linear_cross_entropy_gradients", "mla_decode", "gemm_int4_backward", "grouped_gemm_int4_backward",
    "gemm_sparse24_backward", "fused_linear_cross_entropy_backward", "rotary_kv_append", "gemm_int8_backward",
    "gelu_and_mul_backward", "square_backward", "softmax_backward", "layer_norm_backward", "cross_entropy_backward",
    "topk_softmax_backward", "embedding_backward", "linear_backward", "gemm_w8a8", "grouped_gemm_int4", "apply_rotary",
)  # fmt: skip
"""Their levels have another width than gemm_int8's, or a table (whose kernels the C++ and the Triton plugin's own tests
run for every change), the gate is another than gelu_and_mul's, the gradients come in one pass instead of two, the keys
are latents instead of attention_decode's, a gradient is by a weight that is written out first, or one op does what two
do, fused_linear_cross_entropy and cross_entropy_backward or rotary_embedding and kv_cache_append, or into new tensors
what rotary_embedding does in place. Of gradients those of
gelu, rms_norm, grouped_gemm and attention are for every change: element by element, in rows, as products, and of
several inputs. The public check, which does the same, goes through all implementations in the plugins' own tests."""


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    """The plugins in the box, which no test here adds to."""
    return Catalog()


def session_of(op: Op, dims: Mapping[str, Value]) -> Session:
    return Session(op, op.problem_of(dims), CPU, PROTOCOL, 7)


COMPILED = ("softmax", "gemm_int4")
"""Ops whose kernels in C++ are compiled for every change, in 1 to 2 s of a core an op: in rows and of packed weights.
The plugin's own tests check all of them."""


@pytest.mark.parametrize(
    ("op", "with_cpp"),
    [
        *(
            pytest.param(op, op.name in COMPILED, marks=THOROUGH if op.name.startswith(LIKE_OTHERS) else (), id=op.name)
            for op in BOX
        ),
        *(pytest.param(op, True, marks=THOROUGH, id=f"{op.name} in C++") for op in BOX if op.name not in COMPILED),
    ],
)
@pytest.mark.few(2)
def test_everything_in_the_box_passes_on_a_cpu(catalog: Catalog, op: Op, with_cpp: bool) -> None:
    session, probes = session_of(op, DIMS[op.name]), Probes(CPU)
    passed = 0
    for implementation in catalog.implementations(op.name):
        # torch.compile takes seconds an op; a whole run with it is another test's
        if "cpu" not in implementation.device_types or implementation.name == "torch.compile":
            continue
        if isinstance(implementation, CppImplementation) and not with_cpp:
            continue
        if not any(True for _ in implementation.unsupported(session.problem, CPU)):
            go_through(implementation, session, implementation.default(session.problem, CPU), probes)
            passed += 1
    assert passed


def take_one(x: torch.Tensor) -> torch.Tensor:
    """Doubles x in place and returns its square from before."""
    y = x * x
    x.mul_(2.0)
    return y


MUTATING = replace(
    SQUARE, name="acme::take", schema="acme::take(Tensor(a!) x) -> Tensor y", reference=take_one, fake=torch.empty_like
)


def test_an_op_that_mutates_may_and_starts_from_its_own_inputs_each_time() -> None:
    def right(y: torch.Tensor, x: torch.Tensor) -> None:
        torch.mul(x, x, out=y)
        x.mul_(2.0)

    op = replace(MUTATING, problem=lambda arguments: Problem("acme::take", SQUARE.pose(arguments).dims))
    session = session_of(op, {"n": 1000, "dtype": "float32"})
    go_through(Custom(op.name, right), session, {})
    with pytest.raises(WrongError, match="expected"):
        go_through(Custom(op.name, lambda y, x: y.copy_(x)), session, {})


def test_other_inputs_differ_from_the_timed_ones_in_few_places_and_still_tell() -> None:
    session = session_of(SQUARE, {"n": 10_000, "dtype": "float32"})
    timed, other = session.case("normal"), session.case(PARTLY)
    changed = int((timed.values[0] != other.values[0]).sum())
    assert 0 < changed < 500
    (stale,) = (timed.values[0] ** 2,)
    assert session.judge(timed, (stale,)) == ""
    assert "expected" in session.judge(other, (stale,))


def test_who_looks_at_an_element_that_was_changed_is_found_when_others_are() -> None:
    session = session_of(SQUARE, {"n": 10_000, "dtype": "float32"})
    timed = session.case("normal").values[0]
    once, again = (timed != session.case(kind).values[0] for kind in (PARTLY, PARTLY_AGAIN))
    assert 0 < int(again.sum()) < 500
    assert not (once & again).any()
    place = int(once.nonzero()[0])
    remembered: dict[tuple[int, float], torch.Tensor] = {}

    def peeking(y: torch.Tensor, x: torch.Tensor) -> None:
        key = x.data_ptr(), float(x.reshape(-1)[place if x.numel() > place else 0])
        if key not in remembered:
            remembered[key] = x * x
        y.copy_(remembered[key])

    with pytest.raises(WrongError, match="other inputs at the same addresses"):
        go_through(Custom("square", peeking), session, {})


def test_other_inputs_that_an_op_makes_no_sense_of_are_drawn_anew() -> None:
    def sorted_inputs(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
        return (torch.randn(problem.n, generator=generator).sort().values,)

    def of_sorted(x: torch.Tensor) -> torch.Tensor:
        if bool((x.diff() < 0).any()):
            raise ValueError("x must be sorted")
        return x * x

    op = replace(SQUARE, inputs=sorted_inputs, reference=of_sorted, fake=torch.empty_like)
    other = session_of(op, {"n": 1000, "dtype": "float32"}).case(PARTLY)
    assert bool((other.values[0].diff() >= 0).all())


def test_the_rotation_is_overwritten_in_place_and_goes_back() -> None:
    session = session_of(SQUARE, {"n": 1000, "dtype": "float32"})
    copies, case = session.rotation.copies, session.case("normal")
    addresses = [copy[0].data_ptr() for copy in copies]
    assert len(set(addresses)) == len(copies) > 1
    session.show(PARTLY)
    assert not any(same_bits(copy[0], case.values[0]) for copy in copies)
    session.show("normal")
    assert all(same_bits(copy[0], case.values[0]) for copy in copies)
    assert [copy[0].data_ptr() for copy in session.rotation.copies] == addresses


def test_probes_are_small_odd_and_other_problems_of_the_same_static_dimensions() -> None:
    problem = SOFTMAX.problem_of({"rows": 4096, "cols": 1000, "dtype": "bfloat16"})
    found = probe_problems(SOFTMAX, problem, CPU)
    assert [each.rows for each in found] == [1, 37]
    assert {(each.cols, each.dtype) for each in found} == {(1000, "bfloat16")}
    square = SQUARE.problem_of({"n": 37, "dtype": "float32"})
    assert [each.n for each in probe_problems(SQUARE, square, CPU)] == [1, 4099]


@pytest.mark.usefixtures("no_secrets")
def test_a_candidate_is_probed_once_for_all_problems_that_share_the_probes() -> None:
    calls: list[int] = []

    def count(y: torch.Tensor, x: torch.Tensor) -> None:
        calls.append(x.numel())
        torch.mul(x, x, out=y)

    probes, implementation = Probes(CPU), Custom("square", count)
    for n in (4096, 8192):
        session = session_of(SQUARE, {"n": n, "dtype": "float32"})
        plan = bound_by_call(SQUARE, Candidate(implementation, {}), session.problem, session.arguments, CPU)
        probes.check(plan, {})
    # every problem has sizes of its own, half, three times as large with a part of a tile, and one more; two threads
    # meet at the larger ones, which follow in each layout upon the problem's own
    met, layouts, views, kinds = 2 + 2 * MOST_CALLS, 3, 2 * 3 + 2, len(SQUARE.kinds)
    expected = {1: kinds, 36: views, 37: kinds + layouts, 4099: met + len(OTHER_MODES) + kinds - 1}
    for n in (4096, 8192):
        expected |= {n // 2: kinds, 3 * n + 16: met + layouts + kinds - 1, n + 1: kinds}
    for n in (4096, 8192):
        expected[n] = expected.get(n, 0) + layouts
    assert collections.Counter(calls) == expected


class Replays(Sampler):
    """Claims to launch as samples do."""

    how = "told"

    def __init__(self, launches: Sequence[Callable[[], object]]) -> None:
        self._launches = launches

    def take(self, count: int) -> list[Sample]:
        return []

    def replay(self) -> None:
        for launch in self._launches:
            launch()


class Functional(Custom):
    returns_outputs = True


@pytest.mark.parametrize("reached", [0, 1])
@pytest.mark.parametrize("functional", [True, False])
def test_a_replay_that_does_less_than_samples_is_seen_in_the_finals(reached: int, functional: bool) -> None:
    session = Session(SQUARE, SQUARE.problem_of({"n": 5001, "dtype": "float32"}), CPU, PROTOCOL, 7)
    implementation = (
        Functional("square", lambda x: x * x) if functional else Custom("square", lambda y, x: torch.mul(x, x, out=y))
    )
    plan = build(SQUARE, Candidate(implementation, {}), session.problem, session.arguments, CPU)
    timed = TimedPlan(plan, session)
    timed.launch_each()
    assert len(timed.launches) > 1
    with pytest.raises(WrongError):
        verify_timed(timed, Replays(timed.launches[:reached]), session, alone=False)
    verify_timed(timed, Replays(timed.launches), session, alone=False)


class Lends(Functional):
    """Returns memory that it keeps: another one for each call."""

    def __init__(self) -> None:
        self.lent = list[torch.Tensor]()
        super().__init__("square", self._square)

    def _square(self, x: torch.Tensor) -> torch.Tensor:
        self.lent.append(x * x)
        return self.lent[-1]


def slowly_timed(implementation: Custom) -> tuple[TimedPlan, Replays, Session]:
    """A sampler that claims that each launch takes a second."""
    session = Session(SQUARE, SQUARE.problem_of({"n": 5001, "dtype": "float32"}), CPU, PROTOCOL, 7)
    plan = build(SQUARE, Candidate(implementation, {}), session.problem, session.arguments, CPU)
    timed = TimedPlan(plan, session)
    timed.launch_each()
    sampler = Replays(timed.launches)
    sampler.launch_us, sampler.copies = 1e6, len(timed.launches)
    return timed, sampler, session


@pytest.mark.parametrize("alone", [True, False])
def test_whether_slow_code_keeps_what_it_returns_costs_no_further_launch(alone: bool) -> None:
    calls = list[int]()

    def square(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return x * x

    timed, sampler, session = slowly_timed(Functional("square", square))
    calls.clear()
    verify_timed(timed, sampler, session, alone=alone)
    # two replays, and launches one by one
    assert len(calls) == 3 * len(timed.launches)
    assert all(timed.outputs)


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("copies", [1, 3])
def test_slow_code_that_keeps_what_it_returns_is_refused(alone: bool, copies: int) -> None:
    timed, sampler, session = slowly_timed(Lends())
    timed.keep(copies)
    with pytest.raises(WrongError, match="keeps memory that it has returned"):
        verify_timed(timed, sampler, session, alone=alone)


def test_memory_of_another_library_is_watched_for_long_in_a_trial_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("registry.tuner.verify.timed._CALLS_S", 0.0)
    monkeypatch.setattr("registry.tuner.verify.timed._OTHERS_CALLS_S", 60.0)
    calls = list[int]()

    def square(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return torch.from_numpy((x * x).numpy())

    timed, sampler, session = slowly_timed(Functional("square", square))
    sampler.launch_us = 1.0
    few = 5 * len(timed.launches)
    for alone in (True, False):
        calls.clear()
        verify_timed(timed, sampler, session, alone=alone)
        assert (len(calls) > few) is alone
