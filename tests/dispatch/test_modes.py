"""What may answer: tuned, verified, reference and strict."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from registry import CompileError, DispatchWarning, InvalidArgumentError, NotReadyError, NotTunedError, RegistryError
from registry.dispatch import call_answers
from registry.dispatch.dispatcher import Dispatcher
from registry.dispatch.mode import mode_of

DIMS: dict[str, Any] = {"rows": 8, "cols": 16, "dtype": "float32"}


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(8, 16)


def test_reference_mode_answers_everything_by_the_reference_and_builds_nothing(
    dispatcher: Dispatcher, told: Any, publish: Any, x: torch.Tensor
) -> None:
    one = told("a.one")
    dispatcher.register(one)
    publish(DIMS, "a.one", {"block": 4})
    dispatcher.configure(mode="reference")
    for _ in range(3):
        torch.testing.assert_close(dispatcher.call("softmax", x), torch.softmax(x, -1))
    with dispatcher.using(softmax="a.one"):
        dispatcher.call("softmax", x)
        assert dispatcher.explain("softmax", x).step == "reference"
        torch.testing.assert_close(torch.vmap(lambda row: dispatcher.call("softmax", row))(x), torch.softmax(x, -1))
    assert (one.bound, one.runs) == (0, [])
    explanation = dispatcher.explain("softmax", x)
    assert (explanation.step, explanation.mode) == ("reference", "reference")
    assert 'configure(mode="reference")' in str(explanation)
    assert dispatcher.explain_problem(dispatcher.catalog.op("softmax").problem_of(DIMS)).step == "reference"
    dispatcher.configure(mode="tuned")
    dispatcher.call("softmax", x)
    assert dispatcher.explain("softmax", x).step == "exact"


def test_reference_mode_has_gradients_of_every_order(dispatcher: Dispatcher, told: Any) -> None:
    dispatcher.register(told("a.one"))
    dispatcher.configure(mode="reference")
    x = torch.randn(3, 4, dtype=torch.float32, requires_grad=True)
    for _ in range(2):
        (first,) = torch.autograd.grad(dispatcher.call("softmax", x)[0, 0], x, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), x)
        (plain,) = torch.autograd.grad(torch.softmax(x, -1)[0, 0], x, create_graph=True)
        torch.testing.assert_close(second, torch.autograd.grad(plain.square().sum(), x)[0])


def test_strict_mode_refuses_what_only_a_heuristic_chose(dispatcher: Dispatcher, told: Any, x: torch.Tensor) -> None:
    one = told("a.one")
    dispatcher.register(one)
    dispatcher.configure(mode="strict")
    with pytest.raises(NotTunedError, match=r"softmax\(rows=8, cols=16.*not tuned on cpu") as caught:
        dispatcher.call("softmax", x)
    assert "tune --op softmax" in caught.value.hint
    assert isinstance(caught.value, RegistryError)
    assert one.bound == 0
    explanation = dispatcher.explain("softmax", x)
    assert explanation.raises
    assert "raises NotTunedError" in str(explanation)
    assert dispatcher.explain_problem(dispatcher.catalog.op("softmax").problem_of(DIMS)).raises


def test_strict_mode_lets_winners_and_demands_through(
    dispatcher: Dispatcher, told: Any, publish: Any, x: torch.Tensor
) -> None:
    dispatcher.register(told("a.one"))
    publish(DIMS, "a.one", {"block": 4})
    dispatcher.configure(mode="strict")
    dispatcher.call("softmax", x)
    dispatcher.call("softmax", torch.randn(9, 16))
    assert dispatcher.explain("softmax", torch.randn(9, 16)).step == "nearest"
    with pytest.raises(NotTunedError):
        dispatcher.call("softmax", torch.randn(8, 17))
    with dispatcher.using(softmax="a.one"):
        dispatcher.call("softmax", torch.randn(8, 17))


def test_strict_mode_captures_no_reference_instead_of_a_plan(
    dispatcher: Dispatcher, told: Any, publish: Any, x: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatcher.register(told("a.one"))
    publish(DIMS, "a.one", {"block": 4})
    dispatcher.configure(mode="strict")
    with monkeypatch.context() as patch:
        patch.setattr(call_answers, "capturing", lambda tensors: True)
        with pytest.raises(NotReadyError, match="capturing") as caught:
            dispatcher.call("softmax", x)
        assert "warmup" in caught.value.hint
        dispatcher.configure(mode="tuned")
        with pytest.warns(DispatchWarning, match="reference is captured"):
            dispatcher.call("softmax", x)
        assert dispatcher.explain("softmax", x).step == "reference"


def test_strict_mode_lets_through_what_tuning_could_not_change(
    dispatcher: Dispatcher, told: Any, x: torch.Tensor
) -> None:
    dispatcher.register(told("a.none", unsupported=lambda problem: ["nothing at all"]))
    dispatcher.configure(mode="strict")
    assert dispatcher.call("softmax", torch.empty(0, 16)).shape == (0, 16)
    torch.testing.assert_close(torch.vmap(lambda row: dispatcher.call("softmax", row))(x), torch.softmax(x, -1))
    dispatcher.call("softmax", x)
    assert dispatcher.explain("softmax", x).step == "reference"
    assert dispatcher.call("softmax", x.to("meta")).shape == x.shape


@pytest.mark.filterwarnings("ignore::registry.DispatchWarning")
def test_strict_mode_forgives_a_winner_that_fails(
    dispatcher: Dispatcher, told: Any, publish: Any, x: torch.Tensor
) -> None:
    dispatcher.register(told("a.broken", bind_fault=CompileError("no such intrinsic")))
    dispatcher.register(told("a.sound"))
    publish(DIMS, "a.broken", {"block": 4})
    dispatcher.configure(mode="strict")
    dispatcher.call("softmax", x)
    explanation = dispatcher.explain("softmax", x)
    assert (explanation.step, explanation.implementation, explanation.raises) == ("default", "a.sound", False)


def test_a_stale_winner_is_no_winner_in_strict_mode(
    dispatcher: Dispatcher, told: Any, publish: Any, x: torch.Tensor
) -> None:
    dispatcher.register(told("a.one"))
    publish(DIMS, "a.one", {"block": 4}, fingerprint="2")
    dispatcher.configure(mode="strict")
    with pytest.raises(NotTunedError, match=r"source of a\.one has changed"):
        dispatcher.call("softmax", x)


def test_database_and_mode_are_configured_apart(dispatcher: Dispatcher, tmp_path: Path) -> None:
    dispatcher.configure(database=str(tmp_path / "own.db"))
    dispatcher.configure(mode="strict")
    assert (dispatcher.database, dispatcher.mode()) == (str(tmp_path / "own.db"), "strict")
    dispatcher.configure(database=None)
    assert (dispatcher.database, dispatcher.mode()) == (None, "strict")
    for wrong in ("fast", None, 3):
        with pytest.raises(InvalidArgumentError, match="expected 'tuned', 'verified', 'reference', 'strict'"):
            dispatcher.configure(mode=wrong, database="elsewhere")  # type: ignore[arg-type]
    assert (dispatcher.database, dispatcher.mode()) == (None, "strict")


def test_the_environment_says_the_mode_until_a_program_does(
    dispatcher: Dispatcher, told: Any, x: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert mode_of({}) == "tuned"
    assert mode_of({"KERNEL_REGISTRY_MODE": "reference"}) == "reference"
    dispatcher.register(told("a.one"))
    monkeypatch.setenv("KERNEL_REGISTRY_MODE", "fast")
    with pytest.raises(InvalidArgumentError, match="KERNEL_REGISTRY_MODE='fast'"):
        dispatcher.call("softmax", x)
    monkeypatch.setenv("KERNEL_REGISTRY_MODE", "strict")
    with pytest.raises(NotTunedError):
        dispatcher.call("softmax", x)
    dispatcher.configure(mode="tuned")
    dispatcher.call("softmax", x)


def test_verified_mode_runs_what_was_verified_here_and_else_torchs_own(
    dispatcher: Dispatcher, told: Any, publish: Any, x: torch.Tensor
) -> None:
    ours, native = told("a.tuned", 9.0), told("torch.native", -9.0)
    for implementation in (ours, told("a.default", 99.0), native):
        dispatcher.register(implementation)
    publish(DIMS, "a.tuned", {"block": 4})
    dispatcher.configure(mode="verified")
    for rows, step, name in [(8, "exact", "a.tuned"), (9, "nearest", "a.tuned")]:
        told_of = dispatcher.explain("softmax", torch.randn(rows, 16))
        assert (told_of.step, told_of.implementation, told_of.config) == (step, name, {"block": 4})
        tuned = torch.randn(rows, 16)
        torch.testing.assert_close(dispatcher.call("softmax", tuned), torch.softmax(tuned, -1))
    assert len(ours.runs) == 2
    for cols in (17, 17, 18):
        other = torch.randn(8, cols)
        torch.testing.assert_close(dispatcher.call("softmax", other), torch.softmax(other, -1))
    assert len(native.runs) == 3
    told_of = dispatcher.explain("softmax", torch.randn(8, 17))
    assert (told_of.step, told_of.implementation, told_of.mode) == ("default", "torch.native", "verified")
    assert "nothing near was verified on this machine" in told_of.reason
    assert not told_of.raises
    problem = dispatcher.catalog.op("softmax").problem_of({**DIMS, "cols": 17})
    assert dispatcher.explain_problem(problem).implementation == "torch.native"
    with dispatcher.using(softmax="a.default"):
        assert dispatcher.explain("softmax", x).implementation == "a.default"
    dispatcher.configure(mode="tuned")
    assert dispatcher.explain("softmax", torch.randn(8, 17)).implementation == "a.tuned", "as cols=16 has it"
    assert dispatcher.explain("softmax", torch.randn(8, 1600)).implementation == "a.default"


def test_verified_mode_ends_with_the_reference(dispatcher: Dispatcher, told: Any, x: torch.Tensor) -> None:
    default = told("a.default", 99.0)
    dispatcher.register(default)
    dispatcher.configure(mode="verified")
    for _ in range(2):
        torch.testing.assert_close(dispatcher.call("softmax", x), torch.softmax(x, -1))
    assert (default.bound, dispatcher.explain("softmax", x).step) == (0, "reference")
    assert "verified" in dispatcher.explain("softmax", x).reason


@pytest.mark.parametrize("changed", ["software", "fingerprint"])
def test_verified_mode_takes_no_winner_of_other_code(
    dispatcher: Dispatcher, told: Any, publish: Any, x: torch.Tensor, changed: str
) -> None:
    dispatcher.register(told("a.tuned", 9.0))
    if changed == "software":
        publish(DIMS, "a.tuned", {"block": 4}, software={"torch": "1.0"})
    else:
        publish(DIMS, "a.tuned", {"block": 4}, fingerprint="2")
    dispatcher.configure(mode="verified")
    explanation = dispatcher.explain("softmax", x)
    assert explanation.step == "reference"
    assert ("other software" if changed == "software" else "has changed") in str(explanation)
