"""Every Triton implementation against float64, run in Triton's interpreter on the CPU.

Triton decides at import whether it interprets, so the checks run in processes of their own: outside the interpreter
this file holds the tests that start them, one for every change and thorough ones for each family of ops.
"""

from __future__ import annotations

import math
import os
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.errors import InterpreterError

from registry.arguments.schema import with_tensors
from registry.backends.triton import INTERPRETED, TritonImplementation
from registry.contract import Op, as_tuple
from registry.correctness.expanded import ExpandedLayout, is_any_expanded, reference_of_expanded
from registry.correctness.numerics import compare, judged, own_error, reference64, results_of
from registry.correctness.output_faults import poison
from registry.device import Device
from registry.discovery.answers import refusals
from registry.dispatch.plans.plan import Candidate, build
from registry.implementation import Implementation
from registry.problem import Problem, Value
from registry.space import Config
from registry.testing.given_inputs import GivenInputs
from registry.testing.run_faults import run_faults

from .. import fresh
from ..covering import covering
from ..tiers import one_of_each
from ..triton_forms import EACH, FORMS, OPS

ONE_FORM = {"gemm_int2": 1, "gemm_int1": 0, "gemm_w4a16": 3, "gemm_nf4": 2}
"""Of a family whose kernels differ in the bits alone, the one form that is tried; gemm_int8 tries all."""
BY_GROUPED_MM = ("grouped_gemm_int4", 2)
"""Its product is torch's, and of a GPU alone: on CPUs torch spreads a NaN to the next row."""
CASES = [form for form in EACH if form[1] == ONE_FORM.get(form[0], form[1]) and form != BY_GROUPED_MM]


def family_of(op: str) -> str:
    """The first word of an op's name."""
    return op.partition("_")[0]


FAMILIES = sorted({family_of(name) for name, _ in CASES})
OF_ATTENTION = [
    str(Path(__file__).with_name(name)) for name in ("test_triton_attention.py", "test_triton_int8_caches.py")
]
_NO_LOOPS = "interpreter does not loop with this NumPy"
MOST = 12_000
"""Elements of a problem here: the interpreter takes milliseconds a program."""
EXPANDED_LAYOUTS: tuple[ExpandedLayout, ...] = get_args(ExpandedLayout)
LONG_ROWS = {"triton.split": 9001, "triton.ragged": 2051}
"""Columns of what takes none of the op's short examples."""


def test_an_implementation_of_each_op_is_right_in_the_interpreter(tmp_path: Path) -> None:
    ops = {name for name, _ in CASES}
    passed_in_the_interpreter(tmp_path, len(ops) + len(OF_ATTENTION), __file__, *OF_ATTENTION)


@pytest.mark.thorough
@pytest.mark.parametrize("family", FAMILIES)
def test_implementations_are_right_on_every_example_in_the_interpreter(tmp_path: Path, family: str) -> None:
    cases = [f"{name}-{place}" for name, place in CASES if family_of(name) == family]
    names = ("test_numerics_of_every_example", "test_numerics_of_expanded_inputs")
    tests = [f"{__file__}::{name}[{case}]" for name in names for case in cases]
    passed_in_the_interpreter(tmp_path, len(tests), *tests)


def passed_in_the_interpreter(tmp_path: Path, count: int, *tests: str) -> None:
    """Run tests of this file: none may fail, and at least ``count`` of the numerics must have passed."""
    if INTERPRETED:
        pytest.skip("this is the interpreter")
    told = tmp_path / "told.xml"
    command = ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", f"--junitxml={told}", *tests]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = fresh.run(*command, cwd=Path(__file__).parents[2], env=environment, limit_s=280)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    cases = [case for case in ET.parse(told).iter("testcase") if case.get("name", "").startswith("test_num")]
    skips = {skip.get("message", "") for case in cases for skip in case.iter("skipped")}
    if len(skips) == 1 and _NO_LOOPS in (reason := skips.pop()):
        pytest.skip(reason)
    # a return code of 0 is also that of a run that skipped everything
    assert sum(len(case) == 0 for case in cases) >= count > 0, done.stdout[-6000:]


@triton.jit
def _count(y, n):
    for place in range(n):
        tl.store(y + place, place)


@pytest.fixture(scope="module")
def _interpreter_that_loops() -> None:
    """Triton 3.6's cannot take a loop's bound from an argument with NumPy 2.4: it calls int() on an array."""
    try:
        _count[(1,)](torch.zeros(4), 4)
    except InterpreterError as fault:
        pytest.skip(f"Triton {triton.__version__}'s {_NO_LOOPS}: {fault}")


def problems(op: Op, implementation: Implementation, device: Device) -> list[Problem]:
    """Odd and small problems; more columns where an implementation only takes long rows."""
    dims: list[Mapping[str, Any]] = [dims for dims in op.examples if _elements(dims) <= MOST]
    if cols := LONG_ROWS.get(implementation.name):
        dtypes = ("float32", "float16", "bfloat16")
        chosen = [{name: of[place % len(of)] for name, of in op.choices.items()} for place in range(len(dtypes))]
        dims = [{"rows": 3, "cols": cols, "dtype": dtype, **one} for dtype, one in zip(dtypes, chosen, strict=True)]
    found = [op.problem_of(point) for point in dims]
    return covering(problem for problem in found if not refusals(implementation, problem, device))


def _elements(dims: Mapping[str, Any]) -> int:
    if "cols" in dims:
        return int(dims["rows"]) * int(dims["cols"])
    if "q_len" in dims:
        return math.prod(int(dims[name]) for name in ("batch", "heads", "q_len", "kv_len")) // 2
    return int(dims.get("n", dims.get("k", 1))) * int(dims.get("m", 1))


def config_of(implementation: Implementation, problem: Problem, device: Device, round_: int) -> Config:
    """The default for every third problem; further and further on in the space for the others."""
    space = implementation.space(problem, device)
    default = implementation.default(problem, device)
    assert default in space
    return space.configs[(7 * round_ + 3) % len(space)] if round_ % 3 else default


@pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1")
@pytest.mark.usefixtures("_interpreter_that_loops")
@pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.*")
@pytest.mark.parametrize(("name", "place"), one_of_each(CASES, lambda name, _: name))
def test_numerics(name: str, place: int) -> None:
    # of half of the ops the default, of the others another configuration, problem and kind of inputs
    check_rounds(name, place, [sorted(FORMS).index(name) % 2])


@pytest.mark.thorough
@pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1")
@pytest.mark.usefixtures("_interpreter_that_loops")
@pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.*")
@pytest.mark.parametrize(("name", "place"), CASES)
def test_numerics_of_every_example(name: str, place: int) -> None:
    check_rounds(name, place)


@pytest.mark.thorough
@pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1")
@pytest.mark.usefixtures("_interpreter_that_loops")
@pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.*")
@pytest.mark.parametrize(("name", "place"), CASES)
def test_numerics_of_expanded_inputs(name: str, place: int) -> None:
    """What an implementation does not refuse, where elements that would be read otherwise are NaN."""
    op, implementation, device = OPS[name], FORMS[name][place], Device.of("cpu")
    for layout in EXPANDED_LAYOUTS:
        for tried in problems(op, implementation, device):
            given = GivenInputs(op, tried, op.kinds[0], device, layout)
            reference = reference_of_expanded(op, given.values) if is_any_expanded(given.values) else None
            problem = op.pose(op.arguments(given.values), tried)
            if reference is None or refusals(implementation, problem, device):
                continue
            plan = build(
                op, Candidate(implementation, implementation.default(problem, device)), problem,
                op.arguments(given.values), device,
            )  # fmt: skip
            faults = list(run_faults(plan, given, 0))
            assert not faults, (layout, problem, faults)


def check_rounds(name: str, place: int, rounds: Iterable[int] | None = None) -> None:
    """Every problem and every kind of inputs, or those of some rounds."""
    op, implementation, device = OPS[name], FORMS[name][place], Device.of("cpu")
    tried = problems(op, implementation, device)
    dtypes = {str(value) for problem in tried for value in problem.dims.values()}
    assert dtypes >= {"float16", "bfloat16"}
    for round_ in range(max(len(tried), len(op.kinds))) if rounds is None else rounds:
        problem, kind = tried[round_ % len(tried)], op.kinds[round_ % len(op.kinds)]
        values = op.inputs(problem, kind, torch.Generator().manual_seed(round_))
        reference = reference64(op, values)
        errors = own_error(op, problem, values, reference)
        config = config_of(implementation, problem, device, round_)
        plan = build(op, Candidate(implementation, config), problem, op.arguments(values), device)
        outputs = plan.allocate()
        poison(outputs)
        before = with_tensors(values, torch.clone)
        found = compare(op, problem, op.results(plan.into(outputs, values), values), reference, errors, before)
        assert found.ok, (problem, kind, config, found)


@pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1")
@pytest.mark.usefixtures("_interpreter_that_loops")
@pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.*")
@pytest.mark.parametrize(("gradient", "block"), [("_backward", 16), ("", 2048), ("_gradients", 2048)])
@pytest.mark.few(1)
def test_numerics_of_several_chunks(gradient: str, block: int) -> None:
    """Chunks of fewer rows, or columns, than the space has, the last one of 8."""
    op = OPS[f"fused_linear_cross_entropy{gradient}"]
    (implementation,) = FORMS[op.name]
    dims = {"rows": 40, "cols": 40, "k": 9, "reduction": "mean", "bias": True, "dtype": "float32"}
    for config, kind in zip(({"CHUNK": 32}, {"CHUNK": 16}), ("ignored", "smoothed"), strict=True):
        problem = op.problem_of(dims)
        values = op.inputs(problem, kind, torch.Generator().manual_seed(3))
        whole = {**config, "BLOCK": block, "num_warps": 8}
        plan = build(op, Candidate(implementation, whole), problem, op.arguments(values), Device.of("cpu"))
        found = judged(op, problem, plan(*values), values)
        assert found.ok, (problem, kind, config, found)


@pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1")
@pytest.mark.usefixtures("_interpreter_that_loops")
@pytest.mark.parametrize(("rows", "vocabulary"), [(300, 3), (31, 1), (64, 1)])
@pytest.mark.few(1)
def test_numerics_of_entries_that_many_rows_name(rows: int, vocabulary: int) -> None:
    """Rows before, in and after chunks that are one entry's alone; chunks of two entries; fewer rows than a chunk."""
    op, device = OPS["embedding_backward"], Device.of("cpu")
    (implementation,) = [each for each in FORMS[op.name] if each.name == "triton.sorted"]
    dims = {"rows": rows, "cols": 40, "vocabulary": vocabulary, "frequency": "skewed", "dtype": "float32"}
    problem = op.problem_of(dims)
    values = op.inputs(problem, op.kinds[0], torch.Generator().manual_seed(3))
    config = implementation.default(problem, device)
    plan = build(op, Candidate(implementation, config), problem, op.arguments(values), device)
    found = judged(op, problem, plan(*values), values)
    assert found.ok, (problem, config, found)


@pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1")
@pytest.mark.usefixtures("_interpreter_that_loops")
@pytest.mark.parametrize("zeros", ["integer", "none", "float"])
@pytest.mark.few(1)
def test_numerics_of_written_weights_and_torchs_grouped_product(zeros: str) -> None:
    """Experts without rows, whose weights are not written, and rows of no expert at both ends."""
    (name, place), device = BY_GROUPED_MM, Device.of("cpu")
    op, implementation = OPS[name], FORMS[name][place]
    sizes: Mapping[str, Value] = {"m": 40, "n": 24, "k": 136, "group_size": 32, "experts": 5}
    problem = op.problem_of({**sizes, "zeros": zeros, "routing": "uniform", "dtype": "bfloat16"})
    *values, _ = op.inputs(problem, "normal", torch.Generator().manual_seed(3))
    values = [*values, torch.tensor([3, 3, 20, 20, 31, 37])]
    for config in implementation.space(problem, device).configs[::5]:
        plan = build(op, Candidate(implementation, config), problem, op.arguments(tuple(values)), device)
        found = judged(op, problem, plan(*values), tuple(values))
        assert found.ok, (problem, config, found)


@pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1")
@pytest.mark.usefixtures("_interpreter_that_loops")
def test_numerics_of_tokens_that_have_no_room() -> None:
    """Of two new tokens those beyond the cache's 9 slots are left out, in whichever block they are."""
    op, device = OPS["rotary_kv_append"], Device.of("cpu")
    (implementation,) = FORMS[op.name]
    sizes: Mapping[str, Value] = dict(
        zip(
            ("batch", "heads", "kv_heads", "q_len", "kv_len", "head_dim", "rotary_dim"),
            (3, 4, 2, 2, 9, 16, 16),
            strict=True,
        )
    )
    problem = op.problem_of({**sizes, "positions": False, "style": "neox", "dtype": "float32"})
    values = op.inputs(problem, "normal", torch.Generator().manual_seed(3))
    lengths = torch.tensor([8, 9, 1_000_000], dtype=torch.int32)
    for config in implementation.space(problem, device).configs[::7]:
        rooms = [torch.randn(5, 9, 2, 16) for _ in range(2)]
        behind = with_tensors(rooms, torch.clone)
        given = (*values[:4], *(x[1:4] for x in rooms), lengths, *values[7:])
        plan = build(op, Candidate(implementation, config), problem, op.arguments(given), device)
        _, kv_lens = plan(*given)
        assert kv_lens.tolist() == [9, 9, 9]
        for own, kept in zip(rooms, behind, strict=True):
            assert {tuple(slot) for slot in (own != kept).nonzero()[:, :2].tolist()} == {(1, 8)}, config


MIXED = [
    *(("rms_norm", place) for place in (0, 1)),
    *(("rms_norm_backward", place) for place in (0, 1)),
    *(("layer_norm", place) for place in (0, 1)),
    *(("layer_norm_backward", place) for place in (0, 1)),
    *(("fused_add_rms_norm", place) for place in (0, 1)),
    ("vector_add", 0),
]


@pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1")
@pytest.mark.usefixtures("_interpreter_that_loops")
@pytest.mark.parametrize(
    ("name", "place", "dtype"),
    one_of_each(
        [(*form, dtype) for form in MIXED for dtype in (torch.float16, torch.bfloat16)],
        lambda name, place, dtype: (name, place),
    ),
)
@pytest.mark.few(6)
def test_numerics_of_halves_beside_float32(name: str, place: int, dtype: torch.dtype) -> None:
    op, implementation, device = OPS[name], FORMS[name][place], Device.of("cpu")
    assert implementation.mixed
    dims: dict[str, Value] = {"n": 1003} if name == "vector_add" else {"rows": 3, "cols": 1027}
    dims |= dict.fromkeys(op.choices, True)
    drawn = op.draw(op.problem_of({**dims, "dtype": "float32"}), "normal", torch.Generator().manual_seed(0))
    values = tuple(
        value.to(dtype) if isinstance(value, torch.Tensor) and each not in op.alike else value
        for each, value in zip(op.parsed.names, drawn, strict=True)
    )
    problem = op.pose(op.arguments(values))
    assert problem.traits["mixed"]
    reference = reference64(op, values)
    config = implementation.default(problem, device)
    plan = build(op, Candidate(implementation, config), problem, op.arguments(values), device)
    outputs = plan.allocate()
    poison(outputs)
    expected = results_of(op, values)
    found = op.results(plan.into(outputs, values), values)
    assert [one.dtype for one in found] == [one.dtype for one in expected]
    for one, right in zip(found, reference, strict=True):
        limit = 8 * torch.finfo(one.dtype).eps
        torch.testing.assert_close(one.double(), right, rtol=limit, atol=limit * right.square().mean().sqrt().item())


@pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["rotary_embedding", "kv_cache_append"])
@pytest.mark.few(2)
def test_parts_of_fused_tensors_are_read_and_written_where_they_are(name: str, dtype: torch.dtype) -> None:
    op, implementation, device = OPS[name], FORMS[name][0], Device.of("cpu")
    fused = torch.randn(7, 6 * 32).to(dtype)
    parts = [part.unflatten(-1, (-1, 32)) for part in fused.split([4 * 32, 32, 32], -1)]
    index = torch.tensor([3, 0, 1, 7, 2, 5, 4])
    if name == "rotary_embedding":
        values: tuple[Any, ...] = (index, parts[0], parts[1], 32, torch.randn(9, 20)[:, :16], False)
    else:
        # heads before slots
        caches = [torch.randn(3, 1, 4, 32).to(dtype).transpose(1, 2) for _ in range(2)]
        values = (parts[1], parts[2], *caches, index, None, None)
    right = reference64(op, values)
    problem = op.pose(op.arguments(values))
    assert not list(implementation.unsupported(problem, device))
    assert not problem.traits["contiguous"]
    config = implementation.default(problem, device)
    plan = build(op, Candidate(implementation, config), problem, op.arguments(values), device)
    before = fused.clone()
    for found, expected in zip(op.results(plan(*values), values), right, strict=True):
        limit = 4 * torch.finfo(dtype).eps
        torch.testing.assert_close(found.double(), expected, rtol=limit, atol=limit)
    left = 5 * 32 if name == "rotary_embedding" else 0
    assert torch.equal(fused[:, left:], before[:, left:])


@pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1")
@pytest.mark.parametrize("name", ["apply_rotary", "apply_rotary_backward"])
@pytest.mark.parametrize("need_key", [True, False])
@pytest.mark.few(2)
def test_numerics_of_heads_before_tokens_and_shared_positions(name: str, need_key: bool) -> None:
    op, implementation, device = OPS[name], FORMS[name][0], Device.of("cpu")
    heads = [torch.randn(2, count, 5, 20).transpose(1, 2) for count in (6, 3)]
    positions, table = torch.tensor([[3, 0, 1, 7, 2]]).expand(2, 5), torch.randn(9, 16)[:, 2:14]
    values: tuple[Any, ...] = (positions, *heads, 20, table, need_key)
    if name == "apply_rotary_backward":
        values = (*heads, positions, table, 20, False, True, need_key)
    right = reference64(op, values)
    problem = op.pose(op.arguments(values))
    assert not list(implementation.unsupported(problem, device))
    for config in implementation.space(problem, device).configs[::17]:
        plan = build(op, Candidate(implementation, config), problem, op.arguments(values), device)
        outputs = plan.allocate()
        poison(outputs)
        plan.into(outputs, values)
        for found, expected in zip(outputs, right, strict=True):
            torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1e-6)


LAYER = "layer_norm_backward"


@pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1")
@pytest.mark.usefixtures("_interpreter_that_loops")
@pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.*")
@pytest.mark.parametrize("needs", [(True, False, False), (False, True, False), (False, False, True)], ids=str)
@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.few(3)
def test_one_gradient_of_layer_norm_alone(place: int, needs: tuple[bool, bool, bool]) -> None:
    op, implementation, device = OPS[LAYER], FORMS[LAYER][place], Device.of("cpu")
    # a step of 16 rows lacks eleven, and without eps the inverse deviation of a row of zeros is infinite
    drawn = (torch.randn(5, 33), torch.randn(5, 33), torch.randn(33), torch.randn(33), 0.0)
    widest = op.problem_of({"rows": 64, "cols": 33, "weight": True, "bias": True, "dtype": "float32"})
    config = max(implementation.space(widest, device).configs, key=lambda config: config.get("rows_per_step", 1))
    problem = op.pose(op.arguments((*drawn, *needs)))
    assert set(implementation.scratch(problem, config, device)) - {"statistics"} == {
        name for name, needed in zip(("partial", "partial_bias"), needs[1:], strict=True) if needed
    }
    plan = build(op, Candidate(implementation, config), problem, op.arguments((*drawn, *needs)), device)
    for found, needed, right in zip(plan(*drawn, *needs), needs, as_tuple(op.reference(*drawn)), strict=True):
        assert found.shape == (right.shape if needed else (0,))
        if needed:
            torch.testing.assert_close(found, right, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1")
@pytest.mark.usefixtures("_interpreter_that_loops")
@pytest.mark.parametrize("place", [0, 1])
def test_layer_norm_of_a_large_mean_and_of_equal_numbers(place: int) -> None:
    op, implementation, device = OPS["layer_norm"], FORMS["layer_norm"][place], Device.of("cpu")
    # longer than three steps of a pass, and no multiple of one
    x = torch.randn(2, 6999) + 1e4
    x[1] = 0.1
    problem = op.pose(op.arguments((x, None, None, 1e-5)))
    config = min(implementation.space(problem, device).configs, key=lambda config: config.get("BLOCK", 0))
    plan = build(op, Candidate(implementation, config), problem, op.arguments((x, None, None, 1e-5)), device)
    y, (right,) = plan(x, None, None, 1e-5), reference64(op, (x, None, None, 1e-5))
    assert (y[0] - right[0]).abs().max() < 8 * 1e4 * 2.0**-24
    assert y[1].abs().max() < 1e-4


@pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1")
@pytest.mark.usefixtures("_interpreter_that_loops")
@pytest.mark.parametrize("needs", [(True, False), (False, True), (False, False)], ids=str)
@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.few(3)
def test_gradients_that_nobody_needs_are_left_out(place: int, needs: tuple[bool, bool]) -> None:
    op, implementation, device = OPS["rms_norm_backward"], FORMS["rms_norm_backward"][place], Device.of("cpu")
    drawn = op.draw(op.problem_of({"rows": 7, "cols": 1027, "dtype": "float32"}), "normal", torch.Generator())
    problem = op.pose(op.arguments((*drawn[:4], *needs)))
    config = implementation.default(problem, device)
    assert isinstance(implementation, TritonImplementation)
    launches = implementation.launches(problem, config, device)
    assert (
        any("grad_weight" in launch.args for launch in launches if launch.kernel.__name__ == "sum_partial") == needs[1]
    )
    assert ("partial" in implementation.scratch(problem, config, device)) == needs[1]
    plan = build(op, Candidate(implementation, config), problem, op.arguments((*drawn[:4], *needs)), device)
    both = op.reference(*drawn)
    for found, needed, expected in zip(plan(*drawn[:4], *needs), needs, as_tuple(both), strict=True):
        assert found.shape == (expected.shape if needed else (0,))
        if needed:
            torch.testing.assert_close(found, expected)


@pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1")
def test_nothing_is_written_for_an_empty_tensor() -> None:
    op, implementation, device = OPS["square"], FORMS["square"][0], Device.of("cpu")
    values = (torch.empty(0),)
    problem = op.pose(op.arguments(values))
    config = implementation.default(problem, device)
    plan = build(op, Candidate(implementation, config), problem, op.arguments(values), device)
    assert plan(*values).shape == (0,)


@pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1")
def test_the_interpreter_serves_the_cpu() -> None:
    assert all("cpu" in implementation.device_types for forms in FORMS.values() for implementation in forms)


@pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1")
@pytest.mark.usefixtures("_interpreter_that_loops")
@pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.*")
@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("rows", [0, 5])
@pytest.mark.few(2)
def test_rows_that_are_not_there_add_nothing_to_the_gradient_of_a_weight(place: int, rows: int) -> None:
    op, implementation, device = OPS["rms_norm_backward"], FORMS["rms_norm_backward"][place], Device.of("cpu")
    # without eps the inverse norm of a row of zeros is infinite
    values = (torch.randn(rows, 33), torch.randn(rows, 33), torch.randn(33), 0.0, True, True)
    problem = op.pose(op.arguments(values))
    widest = op.problem_of({"rows": 64, "cols": 33, "dtype": "float32"})
    config = max(implementation.space(widest, device).configs, key=lambda config: config.get("rows_per_step", 1))
    plan = build(op, Candidate(implementation, config), problem, op.arguments(values), device)
    for found, expected in zip(plan(*values), op.reference(*values), strict=True):
        torch.testing.assert_close(found, expected)
