"""The runs of others' tests: what is judged wrong, what is counted, and that PyTorch's own samples have no fault."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.conformance.__main__ import keep
from benchmarks.conformance.counted_calls import CallCounter
from benchmarks.conformance.flaggems_shim import ReplacingMode
from benchmarks.conformance.liger_shim import FUNCTIONS
from benchmarks.conformance.opinfo import judged, judged_differences, judged_gradient, run_opinfo
from benchmarks.conformance.outcomes import Counts, Outcome, counts_table, reasons_list, together
from benchmarks.conformance.published import counts_by_file, counts_by_model, run_files
from benchmarks.conformance.torch_calls import CALLS

from .. import fresh


@dataclass(frozen=True)
class Sample:
    """A sample as OpInfo has it."""

    input: torch.Tensor
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)

    def transform(self, change: Callable[[Any], Any]) -> Sample:
        return replace(self, input=change(self.input))


X = torch.linspace(-2.0, 2.0, 12, dtype=torch.float64).view(3, 4).requires_grad_()


def info(op: Callable[..., torch.Tensor], name: str = "square") -> Any:
    return SimpleNamespace(name=name, op=op)


def refusing(_: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("not for this")


@pytest.mark.parametrize(
    ("op", "x", "outcome"),
    [
        (torch.square, X, Outcome.PASSED),
        (lambda x: x * x + 1e-3, X, Outcome.WRONG),
        (lambda x: (x * x).half(), X, Outcome.WRONG),
        (torch.square, X.detach().long(), Outcome.CLEAR_ERROR),
        (refusing, X.detach().long(), Outcome.BOTH_REFUSE),
        (refusing, X, Outcome.WRONG),
    ],
)
def test_a_sample_is_judged_by_torchs_result(op: Any, x: torch.Tensor, outcome: Outcome) -> None:
    found, reason = judged(info(op), Sample(x))
    assert found is outcome
    assert bool(reason) == (outcome not in {Outcome.PASSED, Outcome.BOTH_REFUSE})


def test_torchs_own_roundings_are_not_held_against_the_registry() -> None:
    rounded = info(lambda x: x * x if x.dtype == torch.float64 else x * x + 1e-3)
    assert judged(rounded, Sample(X.detach().float()))[0] is Outcome.PASSED


def test_gradients_are_judged_by_torchs_and_by_differences() -> None:
    assert judged_gradient(info(torch.square), Sample(X))[0] is Outcome.PASSED
    assert judged_gradient(info(lambda x: x * x.detach()), Sample(X))[0] is Outcome.WRONG
    assert judged_differences(info(torch.square), Sample(X))[0] is Outcome.PASSED
    wrong = info(torch.square, "nn.functional.linear")
    assert judged_differences(wrong, Sample(X, (X.detach()[:, :3],)))[0] is Outcome.CLEAR_ERROR


@pytest.mark.thorough
@pytest.mark.parametrize("name", sorted(CALLS))
def test_pytorchs_samples_of_an_op_have_no_fault(name: str) -> None:
    counted = run_opinfo([name], report=lambda _: None)
    assert sum(counts.outcomes[Outcome.PASSED] for counts in counted.values()) > 10
    faults = {key: counts.reasons for key, counts in counted.items() if counts.faults}
    assert not faults


def test_counts_are_kept_with_those_of_parts_that_were_run_before(tmp_path: Path) -> None:
    counts = Counts()
    counts.add(Outcome.PASSED)
    for size in (3, 4):
        counts.add(Outcome.CLEAR_ERROR, f"x has {size} columns")
    assert counts_table("op", {"add": counts})[2:] == ["| `add` | 3 | 1 | 2 | 0 |", "| all | 3 | 1 | 2 | 0 |"]
    assert reasons_list(counts, Outcome.CLEAR_ERROR) == ["- 2 x x has 3 columns"]
    for part in ("opinfo", "liger", "opinfo"):
        keep(tmp_path, part, {"add": counts}, {"torch": "2"})
    stored = json.loads((tmp_path / "conformance.json").read_text(encoding="utf-8"))
    assert sorted(stored) == ["liger", "opinfo"]
    assert Counts.of_record(stored["opinfo"]["groups"]["add"]).record() == counts.record()
    page = (tmp_path / "conformance.md").read_text(encoding="utf-8")
    assert page.count("| `add` | 3 | 1 | 2 | 0 |") == 2


def test_the_counts_in_the_guide_are_those_of_the_results() -> None:
    root = Path(__file__).parents[2]
    page = (root / "docs/conformance.md").read_text(encoding="utf-8")
    stored = json.loads((root / "benchmarks/results/conformance.json").read_text(encoding="utf-8"))
    groups = {part: {name: Counts.of_record(one) for name, one in stored[part]["groups"].items()} for part in stored}
    others = groups["opinfo"].pop("integers, bool, complex")
    columns = (
        Outcome.PASSED, Outcome.BOTH_REFUSE, Outcome.CLEAR_ERROR, Outcome.EXPLAINED, Outcome.NOT_RUN, Outcome.WRONG,
    )  # fmt: skip
    for counts in (others, *(together(part.values()) for part in groups.values())):
        assert f" | {counts.total} | {' | '.join(str(counts.outcomes[each]) for each in columns)} |\n" in page
        assert counts.faults == 0


def test_tests_of_a_model_count_where_they_pass_without_apply() -> None:
    names = {
        name: f"m.py::llama__CommonTest::{name}" for name in ("test_a", "test_b", "test_c", "test_tied_weights_keys")
    }
    plain = dict.fromkeys(names.values(), ("passed", "")) | {names["test_b"]: ("failed", "AssertionError")}
    applied = plain | {names[name]: ("failed", "AssertionError: 1") for name in names if name != "test_a"}
    counts = counts_by_model(plain, applied)["llama"]
    expected = (Outcome.PASSED, Outcome.BOTH_REFUSE, Outcome.WRONG, Outcome.EXPLAINED)
    assert [counts.outcomes[each] for each in expected] == [1, 1, 1, 1]
    assert reasons_list(counts, Outcome.WRONG) == ["- 1 x test_c: AssertionError: 1"]


TESTS = """
import pytest
import torch

from benchmarks.conformance.counted_calls import ours

X = torch.ones(3, 4)


def test_right():
    assert torch.equal(ours("square", X), X)


def test_refused():
    ours("square", X.long())


@pytest.mark.parametrize("size", [3, 4])
def test_wrong(size):
    assert ours("square", X).sum() == size


def test_of_another_op():
    assert True


@pytest.mark.skip
def test_left_out():
    ours("square", X)
"""


@pytest.mark.thorough
def test_a_published_test_counts_by_what_it_called_and_how_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_at_a_time = threading.Lock()

    def forked(words: Sequence[str], *, cwd: Path, env: Mapping[str, str], **_: object) -> fresh.Done:
        with one_at_a_time:
            return fresh.run(*words[1:], cwd=cwd, env=env)

    # a process that need not import torch
    monkeypatch.setattr(subprocess, "run", forked)
    (tmp_path / "test_squares.py").write_text(TESTS, encoding="utf-8")
    (tmp_path / "test_broken.py").write_text("import no_such_module\n", encoding="utf-8")
    files, on = ["test_squares.py", "test_broken.py"], ["--continue-on-collection-errors"]
    together = run_files(tmp_path, files, on, [], {}, jobs=1)
    assert run_files(tmp_path, files, on, [], {}, jobs=2) == together
    groups = counts_by_file(together)
    assert groups["broken"].outcomes == {Outcome.UNCLEAR: 1}
    counted = {Outcome.PASSED: 1, Outcome.CLEAR_ERROR: 1, Outcome.WRONG: 2, Outcome.NOT_RUN: 2}
    assert groups["squares"].outcomes == counted
    told = counts_by_file({"test_a.py::test_b[3]": ("failed", "AssertionError")}, {"a::test_b": "it asks for less"})
    assert reasons_list(told["a"], Outcome.EXPLAINED) == ["- 1 x test_b: it asks for less"]
    assert reasons_list(groups["squares"], Outcome.CLEAR_ERROR)[0].startswith(
        "- 1 x test_refused: InvalidArgumentError"
    )


def test_torchs_functions_run_the_registry_within_the_shim_of_flaggems() -> None:
    x, made = torch.randn(3, 8), CallCounter.made
    with ReplacingMode():
        y = torch.nn.functional.softmax(x, dim=-1)
        gradient = torch.ops.aten.silu_backward(x, x)
        torch.add(x, x, out=torch.empty_like(x))
        torch.relu(x)
    assert CallCounter.made == made + 2
    torch.testing.assert_close(y, torch.softmax(x, -1))
    torch.testing.assert_close(gradient, torch.ops.aten.silu_backward(x, x))


@pytest.mark.thorough
def test_ligers_functions_are_those_of_the_installed_liger() -> None:
    ops = pytest.importorskip("liger_kernel.ops")
    assert [name for name in FUNCTIONS if not hasattr(ops, name)] == []


def test_a_rotation_by_the_shim_of_liger_has_its_gradient() -> None:
    angles = torch.randn(1, 5, 4, dtype=torch.float64)
    cos, sin = (table.repeat(1, 1, 2) for table in (angles.cos(), angles.sin()))
    q, k = (torch.randn(2, heads, 5, 8, dtype=torch.float32, requires_grad=True) for heads in (2, 1))
    turned = FUNCTIONS["LigerRopeFunction"](q, k, cos.float(), sin.float())
    half = torch.cat((-q[..., 4:], q[..., :4]), -1)
    torch.testing.assert_close(turned[0], q * cos.float() + half * sin.float())
    # a rotation keeps lengths, so that the gradient of half the square of one is the vector itself
    (0.5 * turned[0].square().sum() + 0.5 * turned[1].square().sum()).backward()
    torch.testing.assert_close(q.grad, q.detach())
    torch.testing.assert_close(k.grad, k.detach())


def test_a_model_is_applied_when_its_class_has_made_it() -> None:
    transformers = pytest.importorskip("transformers")
    from benchmarks.conformance.applied import hook
    from registry.integrations.transformers.swapping import Swapped

    class Small(transformers.LlamaForCausalLM):  # type: ignore[misc,name-defined]
        def __init__(self, config: Any) -> None:
            super().__init__(config)

    hook(Small)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "vocab_size": 32}
    config = transformers.LlamaConfig(num_attention_heads=2, **sizes)
    model = Small(config)
    assert any(isinstance(module, Swapped) for module in model.modules())
    assert model.config._attn_implementation == "registry"
    config._attn_implementation = "eager"
    assert Small(config).config._attn_implementation == "eager"
    with torch.device("meta"):
        assert not any(isinstance(module, Swapped) for module in Small(config).modules())
