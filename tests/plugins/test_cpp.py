"""The C++ kernels in the box against float64: every op, dtype, input kind and configuration."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from registry.artifact import Artifact, Target, Variant
from registry.backends.cpp import CppImplementation
from registry.contract import Op
from registry.contracts import BOX
from registry.correctness.numerics import compare, own_error, reference64
from registry.device import Device
from registry.dispatch.plans.plan import Candidate, build
from registry.implementation import Launch
from registry.problem import Problem, Value
from registry.space import Config
from registry_cpp.base import ELEMENT_TYPES
from registry_cpp.elementwise import CppGelu, CppSquare, CppVectorAdd, _Elementwise
from registry_cpp.gemm_int4 import CppGemmInt4, CppGemvInt4, _Decoding
from registry_cpp.packed_gemm import CppGemm, CppGemv
from registry_cpp.rows import CppRmsNorm, SoftmaxColumns, SoftmaxRows

from ..covering import covering
from ..tiers import THOROUGH, one_of_each

OPS = {op.name: op for op in BOX}
CPU = Device.of("cpu")
IMPLEMENTATIONS: list[CppImplementation] = [
    *(
        CppVectorAdd(),
        CppSquare(),
        CppGelu(),
        SoftmaxRows(),
        SoftmaxColumns(),
        CppRmsNorm(),
        CppGemvInt4(),
        CppGemmInt4(),
        CppGemv("gemm_int8", 8),
        CppGemm("gemm_nf4", 4, nf4=True),
    )
]
EACH = pytest.mark.parametrize("implementation", IMPLEMENTATIONS, ids=lambda one: f"{one.op}-{one.name}")


def problems(implementation: CppImplementation) -> list[Problem]:
    """The op's examples that the implementation runs."""
    made = [OPS[implementation.op].problem_of(dims) for dims in OPS[implementation.op].examples]
    return [problem for problem in made if not list(implementation.unsupported(problem, CPU))]


def call(op: Op, implementation: CppImplementation, config: Config, problem: Problem, values: tuple[Any, ...]) -> Any:
    """One call through a plan."""
    return build(op, Candidate(implementation, config), problem, op.arguments(values), CPU)(*values)


class Posed:
    """A problem with inputs of one kind, and what is right for them."""

    def __init__(self, problem: Problem, kind: str) -> None:
        self.op, self.problem, self.kind = OPS[problem.op], problem, kind
        self.values = self.op.inputs(problem, kind, torch.Generator().manual_seed(7))
        self.reference = reference64(self.op, self.values)
        self.own = own_error(self.op, problem, self.values, self.reference)

    def check(self, implementation: CppImplementation, config: Config) -> None:
        """The error rule of the op's contract."""
        y = call(self.op, implementation, config, self.problem, self.values)
        verdict = compare(self.op, self.problem, y, self.reference, self.own)
        assert verdict.ok, f"{self.problem} {self.kind} {dict(config)}: {verdict.message}"


def one_dtype(implementation: CppImplementation) -> str:
    """Each dtype is compiled anew, so that tests ask for one alone. The implementations together have all of them."""
    dtypes = sorted({str(problem.dtype) for problem in problems(implementation)})
    return dtypes[IMPLEMENTATIONS.index(implementation) % len(dtypes)]


# of softmax and gemm_int4 one form: the other is called by tests below
@pytest.mark.parametrize(
    "implementation",
    [
        pytest.param(one, marks=THOROUGH if isinstance(one, SoftmaxColumns | CppGemvInt4) else ())
        for one in IMPLEMENTATIONS
    ],
    ids=lambda one: f"{one.op}-{one.name}",
)
@pytest.mark.usefixtures("one_thread")
def test_defaults_are_right_with_every_input_kind(implementation: CppImplementation) -> None:
    dtype = one_dtype(implementation)
    check_by_turns(implementation, [one for one in covering(problems(implementation)) if one.dtype == dtype])


@pytest.mark.thorough
@EACH
@pytest.mark.usefixtures("one_thread")
def test_defaults_are_right_on_every_example_and_with_every_input_kind(implementation: CppImplementation) -> None:
    found = covering(problems(implementation))
    assert {problem.dtype for problem in found} >= {"float16", "bfloat16"}
    check_by_turns(implementation, found)


def check_by_turns(implementation: CppImplementation, found: list[Problem]) -> None:
    """The default on problems with every kind of inputs, twice."""
    kinds = OPS[implementation.op].kinds
    for number in range(2 * max(len(found), len(kinds))):
        # each round pairs the problems with other kinds
        problem, kind = found[number % len(found)], kinds[(number + number // len(found)) % len(kinds)]
        Posed(problem, kind).check(implementation, implementation.default(problem, CPU))


SMALL: dict[str, dict[str, Any]] = {
    "CppVectorAdd": {"n": 40_003},
    "CppSquare": {"n": 40_003},
    "CppGelu": {"n": 40_003, "approximate": "none"},
    "SoftmaxRows": {"rows": 5, "cols": 333},
    "SoftmaxColumns": {"rows": 3, "cols": 16_411},
    "CppRmsNorm": {"rows": 5, "cols": 333},
    "CppGemvInt4": {"m": 1, "n": 1100, "k": 128, "group_size": 64, "bits": 4, "symmetric": False},
    "CppGemmInt4": {"m": 11, "n": 1100, "k": 128, "group_size": 64, "bits": 4, "symmetric": False},
}
_PACKED = {"n": 1100, "k": 128, "group_size": 64, "zeros": "none", "act_order": False, "bias": True}
SMALL |= {"CppGemv": {"m": 1, **_PACKED}, "CppGemm": {"m": 11, **_PACKED}}


@EACH
@pytest.mark.few(3)
def test_a_configuration_far_from_the_default_is_right_with_every_input_kind(implementation: CppImplementation) -> None:
    dims = {**SMALL[type(implementation).__name__], "dtype": one_dtype(implementation)}
    problem = OPS[implementation.op].problem_of(dims)
    default = implementation.default(problem, CPU)
    configs = implementation.space(problem, CPU).configs
    assert 4 <= len(configs) <= 60
    far = max(configs, key=lambda config: sum(config[name] != default[name] for name in default))
    assert far != default
    for kind in OPS[implementation.op].kinds:
        Posed(problem, kind).check(implementation, far)


@pytest.mark.thorough
@EACH
def test_every_configuration_is_right(implementation: CppImplementation) -> None:
    op = OPS[implementation.op]
    problem = op.problem_of({**SMALL[type(implementation).__name__], "dtype": "bfloat16"})
    space = implementation.space(problem, CPU)
    assert 4 <= len(space) <= 60
    posed = Posed(problem, op.kinds[0])
    for config in space.configs:
        posed.check(implementation, config)


@pytest.mark.parametrize("bits", one_of_each([1, 2]))
def test_words_of_many_fields_are_right_in_any_order(bits: int) -> None:
    op, implementation = OPS[f"gemm_int{bits}"], CppGemm(f"gemm_int{bits}", bits)
    dims: dict[str, Value] = {"m": 3, "n": 40, "k": 200, "group_size": 32, "zeros": "float", "act_order": True}
    problem = op.problem_of({**dims, "bias": True, "dtype": "float32"})
    for kind in op.kinds:
        Posed(problem, kind).check(implementation, implementation.default(problem, CPU))


@pytest.mark.parametrize("dtype", one_of_each([torch.float16, torch.bfloat16]), ids=str)
def test_a_float32_weight_beside_halves_is_right(dtype: torch.dtype) -> None:
    op, implementation = OPS["rms_norm"], CppRmsNorm()
    values = (torch.randn(5, 333).to(dtype), torch.randn(333), 1e-6)
    problem = op.pose(op.arguments(values))
    assert problem.traits["mixed"]
    reference = reference64(op, values)
    for config in implementation.space(problem, CPU):
        y = call(op, implementation, config, problem, values)
        assert y.dtype == dtype
        verdict = compare(op, problem, y, reference, own_error(op, problem, values, reference))
        assert verdict.ok, verdict.message


@EACH
def test_the_default_is_a_point_of_the_space(implementation: CppImplementation) -> None:
    for problem in problems(implementation):
        assert not implementation.space(problem, CPU).violations(implementation.default(problem, CPU))


@EACH
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.few(10)
def test_unaligned_views_are_right(implementation: CppImplementation, stream: bool) -> None:
    op = OPS[implementation.op]
    problem = op.problem_of({**SMALL[type(implementation).__name__], "dtype": one_dtype(implementation)})
    values = op.inputs(problem, op.kinds[0], torch.Generator().manual_seed(3))
    moved = tuple(unaligned(value) if isinstance(value, torch.Tensor) else value for value in values)
    space = implementation.space(problem, CPU)
    config = dict(implementation.default(problem, CPU)) | ({"stream": stream} if "stream" in space.domains else {})
    plan = build(op, Candidate(implementation, config), problem, op.arguments(moved), CPU)
    expected = plan(*values)
    (place,) = plan.allocate()
    y = unaligned(torch.full_like(place, torch.nan))
    plan.into((y,), moved)
    assert torch.equal(y, expected)


def unaligned(tensor: torch.Tensor) -> torch.Tensor:
    """The same values, one element past an aligned address, with guards around that must not change."""
    room = torch.zeros(tensor.numel() + 2, dtype=tensor.dtype)
    view = room[1:-1].view(tensor.shape)
    view.copy_(tensor)
    return view


@EACH
@pytest.mark.few(5)
def test_nothing_is_written_outside_the_output(implementation: CppImplementation) -> None:
    op = OPS[implementation.op]
    problem = op.problem_of({**SMALL[type(implementation).__name__], "dtype": one_dtype(implementation)})
    values = op.inputs(problem, op.kinds[0], torch.Generator().manual_seed(3))
    plan = build(
        op, Candidate(implementation, implementation.default(problem, CPU)), problem, op.arguments(values), CPU
    )
    (place,) = plan.allocate()
    room = torch.full((place.numel() + 64,), 3.0, dtype=place.dtype)
    plan.into((room[32:-32].view(place.shape),), values)
    assert (room[:32] == 3).all()
    assert (room[-32:] == 3).all()


@pytest.mark.parametrize(
    ("implementation", "dtype"),
    [
        pytest.param(implementation, dtype, marks=THOROUGH if dtype == torch.bfloat16 else ())
        for implementation in (SoftmaxRows(), SoftmaxColumns())
        for dtype in (torch.float32, torch.bfloat16)
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_softmax_hands_on_nan_and_infinity_as_torch_does(implementation: CppImplementation, dtype: torch.dtype) -> None:
    op, cols = OPS["softmax"], 8_200
    x = torch.randn(6, cols, generator=torch.Generator().manual_seed(0)).to(dtype)
    x[0] = -torch.inf
    x[1, 5] = torch.nan
    x[2, cols - 1] = torch.inf
    x[3, : cols // 2] = -torch.inf
    x[4, :-1] = -torch.inf
    problem = op.pose(op.arguments((x, -1)))
    expected = torch.softmax(x.float(), -1)
    # each compiles; those of bfloat16 are compiled by the test of every configuration, too
    configs = implementation.space(problem, CPU) if dtype == torch.bfloat16 else [implementation.default(problem, CPU)]
    for config in configs:
        y = call(op, implementation, config, problem, (x, -1))
        assert torch.equal(y.isnan(), expected.isnan()), dict(config)
        assert torch.equal(y[3] == 0, expected[3].to(dtype) == 0)
        assert y[4, -1] == 1


@EACH
def test_reasons_name_everything_that_is_not_supported(implementation: CppImplementation) -> None:
    op = OPS[implementation.op]
    dims = {**SMALL[type(implementation).__name__], "dtype": "float64"}
    reasons = list(implementation.unsupported(Problem(op.name, dims, {"contiguous": False}), CPU))
    assert any("float64" in reason for reason in reasons)
    assert any("row-major" in reason for reason in reasons)


def test_the_number_of_rows_decides_who_runs() -> None:
    def reasons(implementation: CppImplementation, **dims: Any) -> str:
        known = {**SMALL[type(implementation).__name__], "dtype": "bfloat16", **dims}
        return " ".join(implementation.unsupported(Problem(implementation.op, known), CPU))

    assert "only one row" in reasons(CppGemvInt4(), m=2)
    assert "over 64 rows" in reasons(CppGemmInt4(), m=65)
    assert "too short" in reasons(SoftmaxColumns(), cols=100)
    assert "without sharing rows" in reasons(SoftmaxColumns(), rows=10_000)


@pytest.mark.parametrize("op_name", ["square", "vector_add", "gelu"])
@pytest.mark.few(1)
def test_no_elements_are_no_work(op_name: str) -> None:
    (implementation,) = [one for one in IMPLEMENTATIONS if one.op == op_name]
    op, empty = OPS[op_name], torch.empty(0)
    values = op.bind((empty, empty) if op_name == "vector_add" else (empty,), {})
    problem = op.pose(op.arguments(values))
    assert call(op, implementation, implementation.default(problem, CPU), problem, values).shape == (0,)


@pytest.mark.parametrize("implementation", [SoftmaxRows(), CppRmsNorm()], ids=lambda one: one.op)
@pytest.mark.parametrize("shape", [(0, 8), (3, 0)])
@pytest.mark.few(2)
def test_rows_or_columns_may_be_missing(implementation: CppImplementation, shape: tuple[int, int]) -> None:
    op, x = OPS[implementation.op], torch.empty(shape)
    values = op.bind((x,) if implementation.op == "softmax" else (x, torch.empty(shape[1])), {})
    problem = op.pose(op.arguments(values))
    assert call(op, implementation, implementation.default(problem, CPU), problem, values).shape == shape


def test_configurations_that_differ_in_arguments_only_share_a_variant() -> None:
    op, implementation = OPS["square"], CppSquare()
    problem = op.problem_of({"n": 100, "dtype": "float32"})
    values = op.inputs(problem, "normal", torch.Generator())
    plans = [
        build(op, Candidate(implementation, config), problem, op.arguments(values), CPU)
        for config in implementation.space(problem, CPU)
    ]
    assert len({artifact.variant.key for plan in plans for artifact in plan.artifacts}) == 1


class Portable(CppGelu):
    """gelu for another instruction set than this machine's."""

    def __init__(self, architecture: str) -> None:
        self.architecture = architecture

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        launch = super().launch(problem, config, device)
        return Launch(
            launch.kernel, launch.grid, launch.args, launch.constants, {"flags": [f"-march={self.architecture}"]}
        )


@pytest.mark.skipif("x86_64" not in CPU.architecture, reason="names x86 instruction sets")
@pytest.mark.parametrize(
    ("dtype", "architecture"),
    one_of_each(itertools.product(ELEMENT_TYPES, ("x86-64-v3", "x86-64")), lambda dtype, architecture: architecture),
)
@pytest.mark.thorough
def test_other_instruction_sets_give_the_same_numbers(architecture: str, dtype: str) -> None:
    if architecture == "x86-64-v3" and "AVX" not in CPU.architecture:
        pytest.skip("this machine has no AVX2")
    problem = OPS["gelu"].problem_of({"n": 4_099, "dtype": dtype, "approximate": "tanh"})
    implementation = Portable(architecture)
    for kind in OPS["gelu"].kinds:
        Posed(problem, kind).check(implementation, implementation.default(problem, CPU))


def test_half_precision_rounds_to_nearest_even_everywhere() -> None:
    """The squares of all 65536 numbers of each format: ties, subnormals, overflow, NaN."""
    implementation = CppSquare()
    for dtype in (torch.float16, torch.bfloat16):
        x = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(dtype)
        problem = OPS["square"].problem_of({"n": x.numel(), "dtype": str(dtype).removeprefix("torch.")})
        y = call(OPS["square"], implementation, implementation.default(problem, CPU), problem, (x,))
        exact = x.float() * x.float()  # 22 bits at most: the square is exact in fp32, and rounded once
        assert torch.equal(y.isnan(), x.isnan())
        assert torch.equal(y[~x.isnan()], exact.to(dtype)[~x.isnan()])


def test_compiling_needs_no_particular_target() -> None:
    op, implementation = OPS["square"], CppSquare()
    problem = op.problem_of({"n": 100, "dtype": "float32"})
    launch = implementation.launch(problem, implementation.default(problem, CPU), CPU)
    spec = {"defines": dict(launch.constants), "flags": [], "arguments": "ppiiii"}
    artifact = implementation.compile(Variant("cpp", "unary", spec, launch.kernel.source), Target("cpu", "other", 1))
    assert isinstance(artifact, Artifact)
    assert artifact.path.endswith(".so")


@pytest.mark.parametrize(("base", "part"), [(_Elementwise, "operation"), (_Decoding, "rows_at_once")])
def test_a_base_without_what_its_kernels_differ_in_cannot_be_made(base: Any, part: str) -> None:
    with pytest.raises(TypeError, match=rf"abstract method.* {part}"):
        base()
