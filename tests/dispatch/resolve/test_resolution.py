"""The order in which candidates answer, and what makes a stored winner a miss."""

from __future__ import annotations

import re
import sqlite3
import warnings
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from registry import (
    CompileError,
    Config,
    Device,
    DispatchWarning,
    Implementation,
    InvalidArgumentError,
    Op,
    OutOfResourcesError,
    Problem,
    UnknownNameError,
    UnsupportedError,
)
from registry.artifact import Built
from registry.contract import Floor, Tolerance
from registry.contracts import SOFTMAX
from registry.dispatch.dispatcher import Dispatcher
from registry.errors import NotLaunchedError
from registry.implementation import Run, Tensors

from ... import fresh
from ...serving import serving

DIMS = {"rows": 8, "cols": 16, "dtype": "float32"}

INCREMENT = Op(
    name="acme::increment",
    schema="acme::increment(Tensor(a!) x) -> Tensor y",
    version=1,
    reference=lambda x: x.add_(1).clone(),
    fake=torch.empty_like,
    problem=lambda arguments: Problem(
        "acme::increment", {"n": arguments.tensors["x"].numel}, {"aligned": True, "contiguous": True}
    ),
    inputs=lambda problem, kind, generator: (torch.zeros(int(problem.n)),),
    floor=lambda problem: Floor(0, 0),
    tolerance=Tolerance({}, {}, lambda problem, reference: reference),
    static=frozenset(),
    dynamic=frozenset({"n"}),
)


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(8, 16)


def who(dispatcher: Dispatcher, x: torch.Tensor) -> tuple[str, str, dict[str, Any]]:
    """Step, implementation and config, checked against what really runs."""
    expected = torch.softmax(x.double(), -1)
    torch.testing.assert_close(dispatcher.call("softmax", x).double(), expected, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(dispatcher.call("softmax", x).double(), expected, atol=1e-6, rtol=1e-5)
    told = dispatcher.explain("softmax", x)
    return told.step, told.implementation, dict(told.config)


def test_without_implementations_the_reference_answers(dispatcher: Dispatcher, x: torch.Tensor) -> None:
    assert who(dispatcher, x) == ("reference", "reference", {})


def test_the_preferred_default_answers_when_nothing_is_tuned(
    dispatcher: Dispatcher, told: Any, x: torch.Tensor
) -> None:
    low, high = told("a.low", -2.0), told("a.high", 1.0)
    dispatcher.register(low)
    dispatcher.register(high)
    assert who(dispatcher, x) == ("default", "a.high", {"block": 1})
    assert (len(low.runs), len(high.runs)) == (0, 2)


def test_what_does_not_support_the_problem_is_passed_over(dispatcher: Dispatcher, told: Any, x: torch.Tensor) -> None:
    dispatcher.register(told("a.wide", 5.0, unsupported=lambda problem: [f"cols {problem.cols}", "and more"]))
    dispatcher.register(told("a.any"))
    assert who(dispatcher, x)[1] == "a.any"
    others = {other.name: other.reasons for other in dispatcher.explain("softmax", x).others}
    assert others == {"a.wide": ("cols 16", "and more")}


def test_the_exact_winner_answers(dispatcher: Dispatcher, told: Any, publish: Any, x: torch.Tensor) -> None:
    dispatcher.register(told("a.preferred", 9.0))
    dispatcher.register(told("a.tuned"))
    publish(DIMS, "a.tuned", {"block": 4}, baselines={"a.preferred": 1.4})
    publish({**DIMS, "rows": 9}, "a.tuned", {"block": 2})
    assert who(dispatcher, x) == ("exact", "a.tuned", {"block": 4})
    story = str(dispatcher.explain("softmax", x))
    assert "it took 1.40 times as long in the finals" in story
    assert "finals new: the incumbent took 1.250 times as long (1.200 to 1.300)" in story
    assert "12.50 µs" in story


def test_finals_that_tell_nothing_are_told_as_noise(
    dispatcher: Dispatcher, told: Any, publish: Any, x: torch.Tensor
) -> None:
    dispatcher.register(told("a.tuned"))
    publish(DIMS, "a.tuned", {"block": 4}, interval=(0.593, 1299.756))
    story = str(dispatcher.explain("softmax", x))
    assert "finals new: noise (0.593 to 1299.756)" in story
    assert "times as long" not in story


def test_the_nearest_winner_answers_in_log_space(
    dispatcher: Dispatcher, told: Any, publish: Any, x: torch.Tensor
) -> None:
    dispatcher.register(told("a.tuned"))
    publish({**DIMS, "rows": 5}, "a.tuned", {"block": 2})
    publish({**DIMS, "rows": 12}, "a.tuned", {"block": 4})  # log2: 0.58 up against 0.68 down, though 4 rows against 3
    publish({**DIMS, "rows": 8, "cols": 32}, "a.tuned", {"block": 1})
    publish({**DIMS, "rows": 8, "dtype": "float16"}, "a.tuned", {"block": 1})
    assert who(dispatcher, x) == ("nearest", "a.tuned", {"block": 4})
    assert dispatcher.explain("softmax", x).octaves == pytest.approx(0.585, abs=1e-3)


def test_a_near_config_outside_of_todays_space_is_passed_over(
    dispatcher: Dispatcher, told: Any, publish: Any, x: torch.Tensor
) -> None:
    dispatcher.register(told("a.tuned", blocks=lambda problem: [1, 2] if problem.rows < 16 else [4]))
    publish({**DIMS, "rows": 16}, "a.tuned", {"block": 4})
    publish({**DIMS, "rows": 1}, "a.tuned", {"block": 2})
    assert who(dispatcher, x) == ("nearest", "a.tuned", {"block": 2})
    assert "block=4 is not one of [1, 2]" in dispatcher.explain("softmax", torch.randn(12, 16)).misses[0]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"fingerprint": "2"}, "source of a.tuned has changed"),
        ({"op_version": 7}, "version 7 of the op"),
        ({"implementation": "b.gone"}, "b.gone is not installed"),
        ({"config": {"block": 64}}, "block=64 is not one of"),
    ],
)
@pytest.mark.few(2)
def test_a_stale_winner_is_a_miss_with_a_reason(
    dispatcher: Dispatcher, told: Any, publish: Any, x: torch.Tensor, change: dict[str, Any], reason: str
) -> None:
    dispatcher.register(told("a.tuned"))
    publish(**{"dims": DIMS, "implementation": "a.tuned", "config": {"block": 4}, **change})
    assert who(dispatcher, x) == ("default", "a.tuned", {"block": 1})
    assert any(reason in miss for miss in dispatcher.explain("softmax", x).misses)


def test_other_hardware_is_never_used(dispatcher: Dispatcher, told: Any, publish: Any, x: torch.Tensor) -> None:
    dispatcher.register(told("a.tuned"))
    publish(DIMS, "a.tuned", {"block": 4}, hardware={"type": "cpu", "name": "another"})
    assert who(dispatcher, x)[0] == "default"


def test_other_software_is_used_and_marked(dispatcher: Dispatcher, told: Any, publish: Any, x: torch.Tensor) -> None:
    dispatcher.register(told("a.tuned"))
    publish(DIMS, "a.tuned", {"block": 4}, software={"torch": "1.0"})
    assert who(dispatcher, x)[0] == "exact"
    assert f"torch 1.0 then, {torch.__version__} now" in dispatcher.explain("softmax", x).software


def test_new_winners_are_seen_after_forget(dispatcher: Dispatcher, told: Any, publish: Any, x: torch.Tensor) -> None:
    dispatcher.register(told("a.tuned"))
    assert who(dispatcher, x)[0] == "default"
    publish(DIMS, "a.tuned", {"block": 4})
    assert who(dispatcher, x)[0] == "default"
    dispatcher.forget()
    assert who(dispatcher, x)[0] == "exact"


# --- using


def test_using_forces_within_its_block_and_nests(dispatcher: Dispatcher, told: Any, x: torch.Tensor) -> None:
    one, two = told("a.one", 1.0), told("a.two")
    dispatcher.register(one)
    dispatcher.register(two)
    dispatcher.call("softmax", x)
    with dispatcher.using(softmax="a.two"):
        assert who(dispatcher, x) == ("forced", "a.two", {"block": 1})
        with dispatcher.using(softmax=("a.one", {"block": 4})):
            assert who(dispatcher, x) == ("forced", "a.one", {"block": 4})
        assert who(dispatcher, x)[1] == "a.two"
    assert who(dispatcher, x) == ("default", "a.one", {"block": 1})
    assert two.bound == 1


def test_a_forced_implementation_takes_its_own_winning_config(
    dispatcher: Dispatcher, told: Any, publish: Any, x: torch.Tensor
) -> None:
    dispatcher.register(told("a.tuned"))
    publish(DIMS, "a.tuned", {"block": 4})
    with dispatcher.using(softmax="a.tuned"):
        assert who(dispatcher, x) == ("forced", "a.tuned", {"block": 4})


def test_using_names_the_nearest_of_unknown_names(dispatcher: Dispatcher, told: Any) -> None:
    dispatcher.register(told("a.one"))
    with pytest.raises(UnknownNameError, match=r"did you mean a\.one"):
        dispatcher.using(softmax="a.on")
    with pytest.raises(UnknownNameError, match="did you mean softmax"):
        dispatcher.using(sofmax="a.one")
    with pytest.raises(InvalidArgumentError, match=r"expected softmax="):
        dispatcher.using(softmax=3)  # type: ignore[arg-type]


def test_a_forced_implementation_that_cannot_is_an_error_with_every_reason(
    dispatcher: Dispatcher, told: Any, x: torch.Tensor
) -> None:
    dispatcher.register(told("a.no", unsupported=lambda problem: ["first", "second"]))
    dispatcher.register(told("a.broken", bind_fault=CompileError("does not compile")))
    with dispatcher.using(softmax="a.no"), pytest.raises(UnsupportedError, match="first; second"):
        dispatcher.call("softmax", x)
    with dispatcher.using(softmax=("a.broken", {"block": 3})), pytest.raises(UnsupportedError, match="block=3"):
        dispatcher.call("softmax", x)
    with dispatcher.using(softmax="a.broken"), pytest.raises(CompileError, match="does not compile"):
        dispatcher.call("softmax", x)
    with dispatcher.using(softmax="a.broken"), pytest.raises(CompileError, match="does not compile"):
        dispatcher.call("softmax", x.requires_grad_())


# --- what fails


@pytest.mark.parametrize("when", ["bind_fault", "run_fault"])
def test_a_failing_plan_is_put_aside_with_one_warning(
    dispatcher: Dispatcher, told: Any, x: torch.Tensor, when: str
) -> None:
    broken, sound = told("a.broken", 5.0, **{when: CompileError("no such intrinsic")}), told("a.sound")
    dispatcher.register(broken)
    dispatcher.register(sound)
    with pytest.warns(DispatchWarning, match=r"a\.broken.*no such intrinsic"):
        dispatcher.call("softmax", x)
    assert who(dispatcher, x)[1] == "a.sound"
    dispatcher.call("softmax", x, -1)
    dispatcher.call("softmax", torch.randn(9, 16))
    assert broken.bound == 2, "once for each problem"
    others = {other.name: other.reasons for other in dispatcher.explain("softmax", x).others}
    assert "no such intrinsic" in others["a.broken"][0]


@pytest.mark.parametrize("told_of", ["bind_fault", "run_fault", "unsupported", "database"])
def test_a_warning_points_at_the_line_of_the_call(
    dispatcher: Dispatcher, told: Any, x: torch.Tensor, tmp_path: Path, told_of: str
) -> None:
    def slip(problem: Any) -> list[str]:
        raise ZeroDivisionError

    if told_of == "database":
        (tmp_path / "bad.db").write_bytes(b"not a database" * 100)
        dispatcher.configure(database=str(tmp_path / "bad.db"))
    fault = slip if told_of == "unsupported" else CompileError("no such intrinsic")
    calls: list[Callable[[], Any]] = [
        lambda: dispatcher.call("softmax", x),
        lambda: dispatcher.op("softmax")(x, dim=0),
    ]
    if told_of != "run_fault":  # explain launches nothing
        calls.append(lambda: dispatcher.explain("softmax", x.t()))
    for call in calls:
        if told_of == "database":
            dispatcher.configure(database=str(tmp_path / "bad.db"))  # asked once more
        else:  # a new one each time: of one implementation each fault is told once
            dispatcher.register(told("a.broken", 5.0, **{told_of: fault}))
        with pytest.warns(DispatchWarning) as seen:
            call()
        assert {(one.filename, one.lineno) for one in seen} == {(__file__, call.__code__.co_firstlineno)}


def test_wrong_outputs_of_functional_code_are_put_aside(dispatcher: Dispatcher, told: Any, x: torch.Tensor) -> None:
    wrong = told("a.wrong", 5.0, returns_outputs=True, result=lambda x, dim: torch.softmax(x, dim).half())
    dispatcher.register(wrong)
    with pytest.warns(DispatchWarning, match="does not fit: y is float16, expected float32"):
        dispatcher.call("softmax", x)
    assert who(dispatcher, x)[0] == "reference"


@pytest.mark.parametrize(
    ("result", "fault"),
    [
        (lambda x, dim: x, "shares memory with an argument"),
        (lambda x, dim: x[:], "shares memory with an argument"),
        (lambda x, dim: torch.nn.Parameter(torch.softmax(x, dim)), "is a Parameter, expected a plain torch.Tensor"),
        (torch.softmax, ""),
        (
            lambda x, dim: torch._to_functional_tensor(torch.softmax(x, dim)),
            "is no plain tensor: torch treats it as Func",
        ),
    ],
)
def test_functional_code_returns_plain_tensors_of_its_own_from_the_first_call_on(
    dispatcher: Dispatcher, told: Any, x: torch.Tensor, result: Any, fault: str
) -> None:
    dispatcher.register(told("a.other", 5.0, returns_outputs=True, result=result))
    if not fault:
        dispatcher.call("softmax", x)
        assert who(dispatcher, x)[0] == "default"
        return
    with pytest.warns(DispatchWarning, match=f"returned y, which {fault}"):
        y = dispatcher.call("softmax", x)
    assert who(dispatcher, x)[0] == "reference"
    assert y.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
    assert type(y) is torch.Tensor


def test_a_stranger_that_raises_when_asked_does_not_stop_the_call(
    dispatcher: Dispatcher, told: Any, x: torch.Tensor
) -> None:
    def unsupported(problem: Any) -> list[str]:
        raise ZeroDivisionError("slip")

    dispatcher.register(told("a.slip", unsupported=unsupported))
    with pytest.warns(DispatchWarning, match=r"a\.slip: unsupported\(\) raised ZeroDivisionError: slip"):
        assert dispatcher.call("softmax", x).shape == x.shape


def test_a_stranger_that_raises_for_every_shape_is_one_warning(dispatcher: Dispatcher, told: Any) -> None:
    def unsupported(problem: Any) -> list[str]:
        raise ValueError(f"what are {problem.rows} rows?")

    dispatcher.register(told("a.bad", unsupported=unsupported))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for rows in range(1, 9):
            dispatcher.call("softmax", torch.randn(rows, 4))
    assert ["what are 1 rows?" in str(warning.message) for warning in caught] == [True]
    assert "what are 9 rows?" in str(dispatcher.explain("softmax", torch.randn(9, 4)))


def test_failures_of_one_kind_are_one_warning_then_counted_and_logged(
    dispatcher: Dispatcher, told: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "registry.dispatch")
    broken = told("a.broken", 5.0, run_fault=CompileError("no such intrinsic"))
    dispatcher.register(broken)
    dispatcher.register(told("a.sound"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for rows in range(1, 9):
            dispatcher.call("softmax", torch.randn(rows, 4))
        dispatcher.forget()  # as after a reload: what fails on is no news
        dispatcher.call("softmax", torch.randn(1, 4))
        assert len(caught) == 1
        broken._behaviour["run_fault"] = ZeroDivisionError("another fault")
        dispatcher.call("softmax", torch.randn(20, 4))
    assert ["no such intrinsic" in str(one.message) for one in caught] == [True, False]
    assert len(caplog.records) == 10
    assert all("a.broken" in line and "put aside" in line for line in caplog.messages)
    counted = r"no such intrinsic \(.*\.py:\d+\) \(9 such failures in this process\)"
    assert re.search(counted, str(dispatcher.explain("softmax", torch.randn(1, 4))))
    alone = r"ZeroDivisionError: another fault \(.*\.py:\d+\)\n"
    assert re.search(alone, str(dispatcher.explain("softmax", torch.randn(20, 4))) + "\n")


@pytest.mark.parametrize("way", ["call", "op", "torch.ops"])
def test_an_op_that_nobody_implements_is_one_warning_with_the_remedy(
    dispatcher: Dispatcher, told: Any, way: str
) -> None:
    ways: dict[str, Callable[[torch.Tensor], Any]] = {
        "call": lambda x: dispatcher.call("softmax", x),
        "op": dispatcher.op("softmax"),
        "torch.ops": torch.ops.kernel_registry.softmax,
    }
    dispatcher.catalog.define(
        replace(SOFTMAX, name="acme::soft", schema=SOFTMAX.schema.replace("softmax", "acme::soft"))
    )
    call = ways[way]
    with serving(dispatcher), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        explained = str(dispatcher.explain("softmax", torch.randn(3, 4)))
        dispatcher.configure(mode="reference")
        call(torch.randn(1, 4))
        assert not caught, "explain tells it itself, and who asks for the reference gets it"
        dispatcher.configure(mode="tuned")
        for rows in (1, 2, 2, 3):
            call(torch.randn(rows, 4))
        with_double = torch.randn(4, 4, dtype=torch.float64)
        call(with_double)
        dispatcher.forget()
        call(with_double)
    (warning,) = caught
    assert issubclass(warning.category, DispatchWarning)
    assert way == "torch.ops" or warning.filename == __file__
    for part in ("nobody implements softmax", "registry.register()", "`registry plugins`"):
        assert part in str(warning.message)
        assert part in explained
    dispatcher.register(told("a.one"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call(torch.randn(7, 4))
        assert not caught
        dispatcher.call("acme::soft", torch.randn(7, 4))
    assert ["nobody implements acme::soft" in str(one.message) for one in caught] == [True]


def test_an_unreadable_database_is_one_warning_and_defaults(
    dispatcher: Dispatcher, told: Any, x: torch.Tensor, tmp_path: Path
) -> None:
    (tmp_path / "bad.db").write_bytes(b"not a database" * 100)
    dispatcher.configure(database=str(tmp_path / "bad.db"))
    dispatcher.register(told("a.one"))
    with pytest.warns(DispatchWarning, match="winners are not used") as seen:
        dispatcher.call("softmax", x)
    assert len(seen) == 1
    dispatcher.call("square", x)
    assert who(dispatcher, x)[0] == "default"
    assert (tmp_path / "bad.db").read_bytes() == b"not a database" * 100


def test_a_row_that_is_no_json_is_one_warning_and_defaults(
    dispatcher: Dispatcher, told: Any, publish: Any, x: torch.Tensor, tmp_path: Path
) -> None:
    dispatcher.register(told("a.tuned"))
    publish(DIMS, "a.tuned", {"block": 4})
    with closing(sqlite3.connect(tmp_path / "tuning.db")) as raw:
        raw.execute("UPDATE candidate SET config = '{half'")
        raw.commit()
    with pytest.warns(DispatchWarning, match="a winner is skipped: .*JSONDecodeError"):
        dispatcher.call("softmax", x)
    assert who(dispatcher, x)[0] == "default"


def test_a_database_library_that_cannot_be_imported_is_one_warning_and_defaults() -> None:
    code = (
        "import sys, warnings; sys.modules['sqlalchemy'] = None\n"
        "import torch, registry\n"
        "registry.configure(database='postgresql://nobody@nowhere/none')\n"
        "with warnings.catch_warnings(record=True) as seen:\n"
        "    print(registry.call('softmax', torch.zeros(2, 2)).tolist())\n"
        "print([str(one.message)[:42] for one in seen if issubclass(one.category, registry.DispatchWarning)])\n"
    )
    done = fresh.run("-c", code)
    assert done.stdout.splitlines() == [
        "[[0.5, 0.5], [0.5, 0.5]]",
        "['winners are not used: ModuleNotFoundError:']",
    ], done.stderr


def test_a_missing_database_is_silent_and_not_made(dispatcher: Dispatcher, x: torch.Tensor, tmp_path: Path) -> None:
    dispatcher.configure(database=str(tmp_path / "none.db"))
    dispatcher.call("softmax", x)
    assert not (tmp_path / "none.db").exists()


def test_nondeterministic_code_is_passed_over_when_determinism_is_asked(
    dispatcher: Dispatcher, told: Any, x: torch.Tensor, request: pytest.FixtureRequest
) -> None:
    dispatcher.register(told("a.atomic", 5.0, deterministic=False))
    assert who(dispatcher, x)[1] == "a.atomic"
    request.addfinalizer(lambda: torch.use_deterministic_algorithms(False))
    torch.use_deterministic_algorithms(True)
    assert who(dispatcher, x)[0] == "reference"
    torch.use_deterministic_algorithms(False)


def test_what_stood_in_while_determinism_was_asked_does_not_stay(
    dispatcher: Dispatcher, told: Any, x: torch.Tensor, request: pytest.FixtureRequest
) -> None:
    atomic, exact = told("a.atomic", 5.0, deterministic=False), told("a.exact")
    dispatcher.register(atomic)
    dispatcher.register(exact)
    request.addfinalizer(lambda: torch.use_deterministic_algorithms(False))
    for wanted, name in [(True, "a.exact"), (False, "a.atomic")] * 2:
        torch.use_deterministic_algorithms(wanted)
        assert who(dispatcher, x)[1] == name
    assert (len(atomic.runs), len(exact.runs)) == (4, 4)
    assert dispatcher.bound("softmax").misses == 2


@pytest.mark.filterwarnings("ignore::registry.DispatchWarning")
@pytest.mark.parametrize("hit", [False, True])
def test_an_op_that_mutates_is_not_tried_again_after_a_launch(dispatcher: Dispatcher, told: Any, hit: bool) -> None:
    dispatcher.catalog.define(INCREMENT)
    faults: list[Exception] = []

    def launch_twice(tensor: torch.Tensor) -> torch.Tensor:
        tensor.add_(1)
        if faults:
            raise faults[0]
        return tensor.clone()

    dispatcher.register(told("a.twice", 5.0, op="acme::increment", result=launch_twice))
    tensor = torch.zeros(4)
    if hit:
        dispatcher.call("acme::increment", tensor)
    faults.append(OutOfResourcesError("the second launch was refused"))
    with pytest.raises(OutOfResourcesError, match="second launch"):
        dispatcher.call("acme::increment", tensor)
    assert tensor.tolist() == [1.0 + hit] * 4


class Adding(Implementation):
    """Adds one to its argument, and returns nothing."""

    op = "acme::increment"
    name = "a.adding"
    device_types = frozenset({"cpu"})

    def __init__(self) -> None:
        self.runs = 0

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        def run(outputs: Tensors, values: tuple[Any, ...], scratch: Tensors) -> None:
            self.runs += 1
            values[0].add_(1)

        return run


def test_an_op_without_outputs_runs_its_implementation(dispatcher: Dispatcher) -> None:
    schema, adding = "acme::increment(Tensor(a!) x) -> ()", Adding()
    dispatcher.catalog.define(replace(INCREMENT, schema=schema, reference=increment_alone, fake=lambda x: None))
    dispatcher.register(adding)
    tensor = torch.zeros(4)
    for _ in range(3):
        assert dispatcher.call("acme::increment", tensor) is None
    assert tensor.tolist() == [3.0] * 4
    assert adding.runs == 3
    dispatcher.configure(mode="reference")
    assert dispatcher.call("acme::increment", tensor) is None
    assert tensor.tolist() == [4.0] * 4


def increment_alone(x: torch.Tensor) -> None:
    x.add_(1)


def test_explain_tells_of_an_implementation_that_fails_to_say_its_preference(
    dispatcher: Dispatcher, told: Any, x: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    faulty = told("a.faulty")
    monkeypatch.setattr(faulty, "preference", lambda *_: {}["n"])
    dispatcher.register(told("a.one"))
    dispatcher.register(faulty)
    with pytest.warns(DispatchWarning, match=r"a\.faulty: preference\(\) raised KeyError"):
        explanation = dispatcher.explain("softmax", x)
    assert explanation.implementation == "a.one"
    (reason,) = {other.name: other.reasons for other in explanation.others}["a.faulty"]
    assert reason.startswith("supported, not chosen: a.faulty: preference() raised KeyError: 'n' (")
    assert re.search(r"test_resolution\.py:\d+\)$", reason)


def test_explain_builds_but_launches_nothing(dispatcher: Dispatcher, told: Any, x: torch.Tensor) -> None:
    one = told("a.one")
    dispatcher.register(one)
    assert dispatcher.explain("softmax", x).implementation == "a.one"
    assert not one.runs
    assert "tune --op softmax" in dispatcher.explain("softmax", x).tune_command


PLUGIN_FILE = """
import registry
@registry.implements("softmax")
def softmaxes():
    return [registry.implementation_of("softmax", "mine.one", "torch:softmax")]
"""


def test_the_command_that_tunes_an_op_names_the_files_that_implement_it(
    dispatcher: Dispatcher, x: torch.Tensor, tmp_path: Path
) -> None:
    file = tmp_path / "my kernels.py"
    file.write_text(PLUGIN_FILE)
    dispatcher.load_file(file)
    told = dispatcher.explain("softmax", x).tune_command
    assert told.endswith(f"tune --op softmax --shapes shapes.yaml --plugin '{file}'")
    assert "--plugin" not in dispatcher.explain("square", x).tune_command


# --- answers that are none


@pytest.mark.parametrize("answer", [None, "high", float("nan"), float("inf")], ids=str)
def test_a_preference_that_is_no_finite_number_takes_out_only_itself(
    dispatcher: Dispatcher, told: Any, x: torch.Tensor, answer: Any
) -> None:
    sound, faulty = told("a.sound", -2.0), told("a.faulty", answer)
    dispatcher.register(sound)
    dispatcher.register(faulty)
    with pytest.warns(DispatchWarning, match=r"a\.faulty: preference\(\) returned .*, expected a finite number"):
        torch.testing.assert_close(dispatcher.call("softmax", x), torch.softmax(x, -1))
    assert (len(sound.runs), faulty.runs) == (1, [])
    explanation = dispatcher.explain("softmax", x)
    assert explanation.implementation == "a.sound"
    assert "a.faulty: preference() returned" in str(explanation)


@pytest.mark.parametrize("method", ["default", "unsupported"])
def test_an_answer_of_another_type_takes_out_only_itself(
    dispatcher: Dispatcher, told: Any, x: torch.Tensor, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound, faulty = told("a.sound", -2.0), told("a.faulty", 5.0)
    monkeypatch.setattr(faulty, method, lambda *_: None)
    dispatcher.register(sound)
    dispatcher.register(faulty)
    with pytest.warns(DispatchWarning, match=rf"a\.faulty: {method}\(\)"):
        dispatcher.call("softmax", x)
    assert len(sound.runs) == 1
    with dispatcher.using(softmax="a.faulty"), pytest.raises(UnsupportedError, match=rf"{method}\(\)"):
        dispatcher.call("softmax", x)


@pytest.mark.filterwarnings("ignore::registry.DispatchWarning")
def test_an_op_that_mutates_goes_on_after_a_plan_that_has_launched_nothing(dispatcher: Dispatcher) -> None:
    class Adds(Implementation):
        op, device_types = "acme::increment", frozenset({"cpu"})

        def __init__(self, name: str, fault: Exception | None = None) -> None:
            self.name, self._fault = name, fault

        def preference(self, problem: Problem, device: Device) -> float:
            return 5.0 if self._fault else 1.0

        def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
            def run(outputs: Tensors, values: tuple[Any, ...], scratch: Tensors) -> None:
                if self._fault:
                    raise self._fault
                outputs[0].copy_(values[0].add_(1))

            return run

    dispatcher.catalog.define(INCREMENT)
    dispatcher.register(Adds("acme.sound"))
    dispatcher.register(Adds("acme.misaligned", NotLaunchedError("not aligned")))
    x = torch.zeros(4)
    dispatcher.call("acme::increment", x)
    assert "put aside: NotLaunchedError: not aligned" in str(dispatcher.explain("acme::increment", x))
    assert x.tolist() == [1.0] * 4
    dispatcher.register(Adds("acme.late", UnsupportedError("after the first of two launches")))
    with pytest.raises(UnsupportedError, match="after the first"):
        dispatcher.call("acme::increment", x)
