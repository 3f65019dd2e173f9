"""attention's implementations without a GPU: torch's private operators, and what Triton compiles."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from registry.artifact import Built, Signature
from registry.contract import as_tuple
from registry.contracts import ATTENTION, ATTENTION_BACKWARD
from registry.correctness import numerics
from registry.device import Device
from registry.discovery.catalog import Catalog
from registry.dispatch.plans.plan import Candidate, build
from registry.problem import Arguments, Problem, Traits, Value
from registry_torch.attention.masked_cudnn import bias_of_mask, joined

from ..covering import covering
from ..tiers import THOROUGH
from ..triton_forms import FORMS
from .test_triton import A100, H200, HEADS, IMPLEMENTATIONS, default_variants, problem_of, signature

CPU = Device.of("cpu")
TORCH = tuple(map(int, torch.__version__.split(".")[:2]))
BOTH = pytest.mark.parametrize("op", [ATTENTION, ATTENTION_BACKWARD], ids=lambda op: op.name)
LOADED = [
    pytest.param(
        key, device, id=f"{key}-{device.architecture}", marks=() if (op, device) == (ATTENTION, H200) else THOROUGH
    )
    for op in (ATTENTION, ATTENTION_BACKWARD)
    for key in IMPLEMENTATIONS
    for device in (H200, A100)
    if key == f"{op.name} triton.flash"
]
"""The gradient's kernels load ahead by the same rule as the forward's."""
COMPILED: list[tuple[str, dict[str, Any]]] = [
    (key, {**HEADS, "batch": 2, "q_len": 2048, "kv_len": 2048, **more})
    for more in (
        {"mask": "additive", "head_dim": 64},
        {"span": 1024},
        {"causal": False, "span": 1024, "kv_heads": 32},
        {"mask": "bool", "causal": False, "head_dim": 96},
        {"softcap": True, "head_dim": 256},
    )
    for key in (f"{op.name} triton.flash" for op in (ATTENTION, ATTENTION_BACKWARD))
]
SMALL: Mapping[str, Value] = {**HEADS, "batch": 2, "heads": 4, "kv_heads": 4, "q_len": 40, "kv_len": 40}


class Calls(TorchDispatchMode):
    """The arguments of the calls of one of torch's operators."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.met: list[Sequence[Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ == self.name:
            self.met.append(args)
        return func(*args, **(kwargs or {}))


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Many small tensors: threads would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@BOTH
@pytest.mark.parametrize("name", ["torch.native", "torch.flash_cpu"])
@pytest.mark.few(2)
def test_torchs_on_a_cpu_are_right(catalog: Catalog, op: Any, name: str) -> None:
    implementation = catalog.implementation(op.name, name)
    problems = [op.problem_of(dims) for dims in op.examples]
    tried = covering(problem for problem in problems if not list(implementation.unsupported(problem, CPU)))
    assert len(tried) >= 4
    for place in range(max(len(tried), len(op.kinds))):
        problem, kind = tried[place % len(tried)], op.kinds[place % len(op.kinds)]
        values = op.draw(problem, kind, torch.Generator().manual_seed(3))
        plan = build(op, Candidate(implementation, {}), problem, op.arguments(values), CPU)
        verdict = numerics.judged(op, problem, plan(*values), values)
        assert verdict.ok, f"{problem} {kind}: {verdict.message}"


@BOTH
@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("torch.sdpa_flash", {"kv_heads": 2, "span": 9}),
        ("torch.sdpa_flash", {"causal": False, "kv_len": 77}),
        ("torch.sdpa_cudnn", {"kv_heads": 2}),
        ("torch.sdpa_cudnn_masked", {"kv_heads": 2, "mask": "bool", "kv_len": 48}),
        ("torch.sdpa_cudnn_masked", {"mask": "additive", "causal": False}),
        ("torch.sdpa_efficient", {"span": 9}),
        ("torch.sdpa_efficient", {"mask": "bool", "kv_len": 80, "causal": False}),
    ],
    ids=str,
)
@pytest.mark.few(5)
def test_private_operators_take_what_they_are_given_and_return_what_the_op_promises(
    catalog: Catalog, op: Any, name: str, more: Mapping[str, Value]
) -> None:
    # torch's rules for tensors without data check arguments and tell shapes; no GPU is needed
    implementation = catalog.implementation(op.name, name)
    problem = problem_of(op.name, {**SMALL, **more})
    assert not list(implementation.unsupported(problem, H200)) or not torch.backends.cudnn.is_available()
    values = op.draw(problem, "normal", torch.Generator().manual_seed(0))
    arguments = op.arguments(values)
    run = implementation.bind(problem, {}, H200, Built(Signature(arguments, op.output_specs(arguments, CPU.torch))))
    on_meta = tuple(x.to("meta") if isinstance(x, torch.Tensor) else x for x in values)
    if (op, name) == (ATTENTION_BACKWARD, "torch.sdpa_efficient") and TORCH < (2, 12):
        # its rule for tensors without data takes no scale
        with pytest.raises(TypeError, match="multiple values for argument 'scale'"):
            run((), on_meta, ())
        return
    found = as_tuple(run((), on_meta, ()))
    for one, spec in zip(found, op.output_specs(arguments, torch.device("cpu")).values(), strict=True):
        assert (tuple(one.shape), one.dtype, one.stride()) == (spec.shape, spec.dtype, spec.strides)


@pytest.mark.parametrize(
    ("name", "more"),
    [("torch.sdpa_cudnn", {"kv_heads": 2}), ("torch.sdpa_cudnn_masked", {"kv_heads": 2, "mask": "bool", "kv_len": 48})],
    ids=str,
)
@pytest.mark.parametrize(
    "transposed", [("grad_out",), ("out", "grad_out"), ("q",), ("q", "out"), ("a part of wider rows",)], ids=str
)
@pytest.mark.few(10)
def test_plans_of_cudnn_are_told_apart_by_the_strides_of_queries(
    catalog: Catalog, name: str, more: Mapping[str, Value], transposed: Sequence[str]
) -> None:
    # torch finds plans again by neither the strides of outputs nor those of their gradients, and knows its own by 0.0
    op, implementation = catalog.op("attention_backward"), catalog.implementation("attention_backward", name)
    problem = problem_of(op.name, {**SMALL, **more})
    values = op.draw(problem, "normal", torch.Generator().manual_seed(0))
    signature = Signature(op.arguments(values), op.output_specs(op.arguments(values), CPU.torch))
    run = implementation.bind(problem, {}, H200, Built(signature))
    on_meta = {
        key: x.to("meta") if isinstance(x, torch.Tensor) else x for key, x in zip(op.parsed.names, values, strict=True)
    }
    for key in transposed:
        if key == "a part of wider rows":
            on_meta["q"] = torch.cat([on_meta["q"]] * 3, dim=2)[:, :, : on_meta["q"].shape[2]]
        else:
            on_meta[key] = on_meta[key].transpose(1, 2).contiguous().transpose(1, 2)
    with Calls("_scaled_dot_product_cudnn_attention_backward") as calls:
        run((), tuple(on_meta.values()), ())
    ((grad_out, q, _k, _v, out, *rest),) = calls.met
    assert q.stride() == on_meta["q"].transpose(1, 2).stride()
    assert grad_out.stride() == out.stride() == torch.empty_like(q).stride()
    (dropout,) = (each for each in rest if isinstance(each, float))
    assert dropout == 0.0
    assert math.copysign(1.0, dropout) == -1.0


@BOTH
@pytest.mark.parametrize(
    ("name", "more", "reason"),
    [
        ("torch.sdpa_flash", {"dtype": "float32"}, "dtype is float32, expected float16 or bfloat16"),
        ("torch.sdpa_flash", {"mask": "bool"}, "it takes no mask"),
        ("torch.sdpa_flash", {"softcap": True}, "it has no soft cap"),
        ("torch.sdpa_flash", {"q_len": 41}, "q_len=41 is more than kv_len=40: the first rows see no key"),
        ("torch.sdpa_flash", {"head_dim": 264}, r"head_dim=264 \(limit 256\)"),
        ("torch.sdpa_flash", {"head_dim": 20}, "head_dim=20 is no multiple of 8"),
        ("torch.sdpa_cudnn", {"span": 8}, "it has no window"),
        ("torch.sdpa_cudnn", {"kv_len": 50}, "its causal rows begin at the first key"),
        ("torch.sdpa_cudnn", {"head_dim": 256}, r"head_dim=256 \(limit 128\)"),
        ("torch.sdpa_cudnn_masked", {}, "there is no mask: torch.sdpa_cudnn"),
        ("torch.sdpa_cudnn_masked", {"mask": "bool", "span": 8}, "it has no window"),
        ("torch.sdpa_cudnn_masked", {"mask": "additive", "kv_len": 41}, "the rows of a mask of kv_len=41"),
        ("torch.sdpa_cudnn_masked", {"mask": "additive", "dtype": "float16"}, "cuDNN takes no -inf"),
        ("torch.sdpa_cudnn_masked", {"mask": "bool", "head_dim": 256}, r"head_dim=256 \(limit 128\)"),
        ("torch.sdpa_efficient", {"kv_heads": 2}, "4 heads share 2 of keys and values"),
        ("torch.sdpa_efficient", {"causal": False, "span": 8}, "it has no window"),
        ("torch.sdpa_efficient", {"mask": "bool", "kv_len": 41}, "the rows of a mask of kv_len=41"),
        ("torch.flash_cpu", {"mask": "bool"}, "it takes a mask or causal rows, not both"),
        ("triton.flash", {"head_dim": 257}, r"head_dim=257 \(limit 256\)"),
    ],
    ids=str,
)
@pytest.mark.few(19)
def test_reasons_are_told(catalog: Catalog, op: Any, name: str, more: Mapping[str, Value], reason: str) -> None:
    problem = op.problem_of({"dtype": "bfloat16", **SMALL, **more})
    found = list(catalog.implementation(op.name, name).unsupported(problem, H200))
    assert any(re.match(reason, told) for told in found), found


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("mask", "dtype"), [("bool", "bfloat16"), ("bool", "float16"), ("additive", "bfloat16")])
def test_the_finite_bias_of_a_mask_hides_the_same_keys(mask: str, dtype: str, causal: bool) -> None:
    problem = problem_of("attention", {**SMALL, "mask": mask, "dtype": dtype, "causal": causal, "q_len": 40})
    q, k, v, given, *_ = ATTENTION.draw(problem, "masked", torch.Generator().manual_seed(0))
    bias = bias_of_mask(joined(given, 40, causal), q.dtype)
    assert (bias.dtype, bias.is_contiguous(), bool(bias.isfinite().all())) == (q.dtype, True, True)
    found: Any = ATTENTION.reference(q, k, v, bias)
    right: Any = ATTENTION.reference(q, k, v, given, causal)
    sees = right[1] > -math.inf
    assert sees.any()
    assert not sees.all()
    rows = sees.transpose(1, 2)
    torch.testing.assert_close(found[0][rows], right[0][rows], rtol=1e-2, atol=1e-2)
    known = right[1] > -1e30
    torch.testing.assert_close(found[1][known], right[1][known])


def test_layouts_that_kernels_cannot_read_are_told(catalog: Catalog) -> None:
    q, k, v = (torch.randn(2, 9, 4, 20).bfloat16()[..., ::2] for _ in range(3))
    problem = ATTENTION.pose(ATTENTION.arguments(ATTENTION.bind((q, k, v), {})))
    for name in ("torch.flash_cpu", "torch.sdpa_flash", "triton.flash"):
        told = list(catalog.implementation("attention", name).unsupported(problem, H200))
        assert [f"the elements of a head of {each} are not neighbours" in told for each in "qkv"] == [True] * 3
    q, k, v = (torch.randn(2, 9, 4, 17).bfloat16()[..., :16] for _ in range(3))
    problem = ATTENTION.pose(ATTENTION.arguments(ATTENTION.bind((q, k, v), {})))
    assert not list(catalog.implementation("attention", "triton.flash").unsupported(problem, H200))
    told = list(catalog.implementation("attention", "torch.sdpa_flash").unsupported(problem, H200))
    assert "the heads of q do not start at multiples of 16 bytes" in told


def test_windows_shared_heads_and_caps_have_a_kernel_on_every_gpu() -> None:
    for op, device in itertools.product((ATTENTION, ATTENTION_BACKWARD), (H200, A100)):
        for dims in op.examples:
            problem = op.problem_of(dims)
            if dims["dtype"] != "float64":
                assert not list(FORMS[op.name][0].unsupported(problem, device)), problem


# test_triton.py compiles the kernels of both without a mask, the next test that of the largest tile with one, and the
# interpreter runs every form
@pytest.mark.thorough
@pytest.mark.parametrize(("key", "dims"), COMPILED)
def test_triton_compiles_every_form(key: str, dims: Mapping[str, Any]) -> None:
    variants = default_variants(IMPLEMENTATIONS[key], problem_of(key.partition(" ")[0], dims), H200)
    assert len(variants) == (3 if "backward" in key else 1)
    for variant in variants:
        resources = IMPLEMENTATIONS[key].compile(variant, H200.target).resources
        assert resources["shared_bytes"] <= H200.shared_bytes


@pytest.mark.parametrize(("key", "device"), LOADED)
@pytest.mark.thorough
def test_the_most_that_is_loaded_ahead_fits_in_shared_memory(key: str, device: Device) -> None:
    op, implementation = key.partition(" ")[0], IMPLEMENTATIONS[key]
    problem = problem_of(op, {**HEADS, "batch": 2, "q_len": 2048, "kv_len": 2048, "mask": "additive"})
    names = ("BLOCK_N", "BLOCK_M") if op == "attention" else ("STEP", "BLOCK")
    configs = implementation.space(problem, device).configs
    config = max(configs, key=lambda config: (config["num_stages"] * config[names[0]], config[names[1]]))
    known = signature(problem, implementation, config, device)
    for variant in implementation.variants(problem, config, device, known):
        assert implementation.compile(variant, device.target).resources["shared_bytes"] <= device.shared_bytes


@BOTH
def test_calls_with_and_without_a_scale_run_one_compiled_kernel(op: Any) -> None:
    """What is tuned has a scale, most calls have none."""
    implementation = IMPLEMENTATIONS[f"{op.name} triton.flash"]
    drawn = op.draw(op.problem_of({**SMALL, "dtype": "bfloat16"}), "normal", torch.Generator().manual_seed(0))
    place = op.parsed.names.index("scale")
    assert isinstance(drawn[place], float)
    keys = []
    for scale in (drawn[place], 0.3, None):
        values = (*drawn[:place], scale, *drawn[place + 1 :])
        arguments = op.arguments(values)
        problem = op.pose(arguments)
        config = implementation.default(problem, H200)
        outputs = op.output_specs(arguments, torch.device("cpu"))
        given = Signature(arguments, outputs, implementation.scratch(problem, config, H200))
        keys.append([variant.key for variant in implementation.variants(problem, config, H200, given)])
    assert keys[0] == keys[1] == keys[2]


def test_launches_of_gradients_that_nobody_needs_are_left_out() -> None:
    op = ATTENTION_BACKWARD
    implementation: Any = FORMS[op.name][0]
    whole = problem_of(op.name, SMALL)
    values = op.draw(whole, "normal", torch.Generator())
    for needs, kernels in (
        ((True, True, True), ["row_deltas", "by_keys", "by_queries"]),
        ((True, False, False), ["row_deltas", "by_queries"]),
        ((False, False, True), ["by_keys"]),
        ((False, False, False), ["row_deltas"]),
    ):
        arguments: Arguments = op.arguments((*values[:-3], *needs))
        problem = Problem(op.name, whole.dims, Traits(arguments))
        launches = implementation.launch(problem, implementation.default(problem, H200), H200)
        assert [launch.kernel.fn.__name__ for launch in launches] == kernels
