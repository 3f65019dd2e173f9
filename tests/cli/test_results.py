"""``registry results``: intervals, ties, and every trial."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tuning_db import CandidateKey, Decision, Environment, Interval, ProblemKey, Protocol, Store, Trial

from .conftest import Command

ENVIRONMENT = Environment({"type": "cuda", "name": "NVIDIA H200"}, {"torch": "2.11.0"})
PROTOCOL = Protocol("cold", {"rounds": 24})


def problem(n: int) -> ProblemKey:
    return ProblemKey("square", 1, {"n": n, "dtype": "float32"}, ("dtype",))


def candidate(block: int) -> CandidateKey:
    return CandidateKey("triton.block", "f" * 64, {"BLOCK": block})


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """A clear winner, a tie, and a trial of every kind."""
    path = tmp_path / "some.db"
    with Store.open(path) as store:
        run = store.start_run(ENVIRONMENT)
        ends = {"ok": 5.0, "wrong_result": None, "crash": None, "unsupported": None}
        store.add_trials(
            run,
            [
                Trial(problem(4096), candidate(2**place), ENVIRONMENT, PROTOCOL, status, f"why {status}", us)
                for place, (status, us) in enumerate(ends.items())
            ],
        )
        store.publish(
            run,
            Decision(
                problem(4096), ENVIRONMENT, PROTOCOL, candidate(1), 5.0, 4.5, verdict="new",
                default_ratio=Interval(1.4, 1.362, 1.438),
            ),
        )  # fmt: skip
        store.publish(
            run,
            Decision(
                problem(8192), ENVIRONMENT, PROTOCOL, candidate(1), 9.0, verdict="tie",
                ties=("torch.native", "triton.block BLOCK=2"),
            ),
        )  # fmt: skip
    return path


def test_ratios_of_disturbed_finals_are_told_as_noise(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "disturbed.db"
    wild = Decision(
        problem(4096), ENVIRONMENT, PROTOCOL, candidate(1), 5.0, 4.5, verdict="new", ratio=29.7, lo=5.1, hi=12922.33,
        baselines={"torch.native": 1258.31, "torch.compile": 4529.84}, default_ratio=Interval(29.7, 5.1, 12922.33),
    )  # fmt: skip
    with Store.open(path) as store:
        store.publish(store.start_run(ENVIRONMENT), wild)
    out = command("registry", "results", "--db", path).out
    assert "noise (5.100 to 12922.330)" in out
    assert not any(ratio in out for ratio in ("29.7", "1258", "4529"))
    page = tmp_path / "page.html"
    command("registry", "report", "--db", path, "--out", page)
    assert "noise (5.10 to 12922" in page.read_text()
    assert not any(ratio in page.read_text() for ratio in (">29.7", ">1258", ">4529"))


def test_the_winners_of_an_op_are_shown_without_reading_its_trials(command: Command, database: Path) -> None:
    with closing(sqlite3.connect(database)) as raw:  # whoever reads these meets it
        raw.execute("UPDATE trial SET samples = '{half' WHERE id < (SELECT max(id) FROM trial)")
        raw.commit()
    told = command("registry", "results", "--op", "square", "--db", database)
    assert told.code == 0
    assert "n=8192" in told.out


@pytest.mark.parametrize(
    ("ops", "shown"),
    [
        (("--op", "gelu,square"), ["gelu", "square"]),
        (("--op", "square", "--op", "gelu"), ["gelu", "square"]),
        (("--op", "gelu"), ["gelu"]),
        ((), ["gelu", "square"]),
    ],
)
@pytest.mark.few(2)
def test_several_ops_are_shown(command: Command, database: Path, ops: tuple[str, ...], shown: list[str]) -> None:
    other = ProblemKey("gelu", 1, {"n": 4096, "dtype": "float32"}, ("dtype",))
    with Store.open(database) as store:
        run = store.start_run(ENVIRONMENT)
        store.add_trials(run, [Trial(other, candidate(1), ENVIRONMENT, PROTOCOL, "ok", "", 5.0)])
        store.publish(run, Decision(other, ENVIRONMENT, PROTOCOL, candidate(1), 5.0, verdict="new"))
    for more in ((), ("--trials",)):
        told = json.loads(command("registry", "results", *more, *ops, "--json", "--db", database).out)
        assert sorted({one["op"] for one in told}) == shown
    refused = command("registry", "results", "--op", "gelu,squar", "--db", database)
    assert refused.code == 2
    assert "squar" in refused.err


def test_the_interval_of_the_ratio_to_the_default_is_shown(command: Command, database: Path) -> None:
    told = command("registry", "results", "--db", database)
    assert "× default" in told.out.splitlines()[0]
    (line,) = [line for line in told.out.splitlines() if "n=4096" in line]
    assert "1.400 (1.362 to 1.438)" in line
    by_n = {one["dims"]["n"]: one for one in json.loads(command("registry", "results", "--db", database, "--json").out)}
    assert (by_n[4096]["default_ratio"], by_n[4096]["default_interval"]) == (1.4, [1.362, 1.438])
    assert by_n[8192]["default_interval"] is None


def test_a_tie_is_shown_as_one(command: Command, database: Path) -> None:
    (line,) = [line for line in command("registry", "results", "--db", database).out.splitlines() if "n=8192" in line]
    assert "tie: triton.block ≈ torch.native, triton.block BLOCK=2" in line
    by_n = {one["dims"]["n"]: one for one in json.loads(command("registry", "results", "--db", database, "--json").out)}
    assert (by_n[8192]["verdict"], by_n[8192]["ties"]) == ("tie", ["torch.native", "triton.block BLOCK=2"])


@pytest.mark.parametrize(
    ("status", "why"),
    [("timeout", "timeout"), ("ok", "source or space changed, or gone"), ("", "source or space changed, or gone")],
)
@pytest.mark.few(1)
def test_a_new_winner_in_the_place_of_one_that_was_out_says_why(
    command: Command, tmp_path: Path, status: str, why: str
) -> None:
    path = tmp_path / "out.db"
    with Store.open(path) as store:
        run = store.start_run(ENVIRONMENT)
        first = Decision(problem(1), ENVIRONMENT, PROTOCOL, candidate(1), 5.0, verdict="new")
        store.publish(run, first)
        if status:
            store.add_trials(run, [Trial(problem(1), candidate(1), ENVIRONMENT, PROTOCOL, status)])
        second = Decision(problem(1), ENVIRONMENT, PROTOCOL, candidate(2), 9.0, verdict="new", previous=first.uid)
        store.publish(run, second)
        # later trials do not count
        store.add_trials(run, [Trial(problem(1), candidate(1), ENVIRONMENT, PROTOCOL, "crash")])
    told = f"the stored winner triton.block was out: {why}"
    assert f"new ({told})" in command("registry", "results", "--db", path).out
    (winner,) = json.loads(command("registry", "results", "--db", path, "--json").out)
    assert (winner["verdict"], winner["reason"]) == ("new", told)


def test_no_other_winner_has_a_reason(command: Command, database: Path) -> None:
    told = json.loads(command("registry", "results", "--db", database, "--json").out)
    assert [winner["reason"] for winner in told] == ["", ""]


def test_samples_of_a_slowed_or_shared_device_are_marked(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "slow.db"
    found = [{"clocks": {"sm_mhz": 900, "throttled": ["power brake"]}, "contended": True}, {"clocks": {"sm_mhz": 900}}]
    with Store.open(path) as store:
        run = store.start_run(ENVIRONMENT)
        trials = [
            Trial(problem(1), candidate(place), ENVIRONMENT, PROTOCOL, "ok", median_us=5.0, details=details)
            for place, details in enumerate(found)
        ]
        store.add_trials(run, trials)
    lines = command("registry", "results", "--db", path, "--trials").out.splitlines()
    assert [line.rstrip().endswith("throttled (power brake); contended") for line in lines] == [False, False, True]


def test_every_trial_is_listed_with_status_and_reason(command: Command, database: Path) -> None:
    lines = command("registry", "results", "--db", database, "--op", "square", "--trials").out.splitlines()
    assert len(lines) == 5
    for status in ("ok", "wrong_result", "crash", "unsupported"):
        assert sum(f"why {status}" in line for line in lines) == 1


@pytest.mark.parametrize(
    "given", [["--status", "crash,wrong_result"], ["--status", "crash", "--status", "wrong_result"]]
)
@pytest.mark.few(1)
def test_trials_can_be_narrowed_by_status(command: Command, database: Path, given: list[str]) -> None:
    told = command("registry", "results", "--db", database, "--trials", "--json", *given)
    assert sorted(one["status"] for one in json.loads(told.out)) == ["crash", "wrong_result"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--trials", "--status", "wrong"], "unknown status 'wrong'"),
        (["--status", "crash"], "--status without --trials"),
    ],
)
def test_a_status_that_cannot_be_is_refused(
    command: Command, database: Path, arguments: list[str], message: str
) -> None:
    told = command("registry", "results", "--db", database, *arguments)
    assert told.code == 2
    assert message in told.err


HOSTILE = "\x1b[2J\x1b]0;mine\x07\r\u202e\x9b31m\x7f"


def test_names_and_messages_of_others_do_not_steer_the_terminal(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "hostile.db"
    with Store.open(path) as store:
        environment = Environment({"type": "cpu", "name": HOSTILE}, {"torch": HOSTILE})
        hostile = CandidateKey(f"a.{HOSTILE}", "f" * 64, {HOSTILE: HOSTILE})
        posed = ProblemKey("square", 1, {"n": 8, HOSTILE: HOSTILE, "dtype": HOSTILE}, ("dtype",))
        stranger = ProblemKey(f"acme::{HOSTILE}", 1, {"n": 8}, ())
        run = store.start_run(environment)
        for one in (posed, stranger):
            store.add_trials(run, [Trial(one, hostile, environment, PROTOCOL, "crash", HOSTILE, 5.0)])
            store.publish(run, Decision(one, environment, PROTOCOL, hostile, 5.0, verdict="tie", ties=(HOSTILE,)))
    for arguments in (
        ["results"], ["results", "--op", "square"], ["results", "--trials"], ["results", "--json"],
        ["results", "--op", HOSTILE], ["export", "--hardware", HOSTILE + "x", tmp_path / "out.jsonl"],
        ["explain", "square", "n=8", "dtype=float32"], ["explain", HOSTILE], ["explain", "square", f"n={HOSTILE}"],
        ["report", "--out", tmp_path / HOSTILE / "report.html"], ["report", "--out", tmp_path / f"{HOSTILE}.html"],
        ["report", "--out", "-"], ["compare", path, path, "--all"], ["compare", path, path, "--all", "--json"],
        ["export", "-"], ["import", tmp_path / HOSTILE], ["ops", "--plugin", tmp_path / HOSTILE],
    ):  # fmt: skip
        told = (
            command("registry", *arguments, "--db", path) if arguments[0] != "ops" else command("registry", *arguments)
        )
        written = told.out + told.err
        assert written, arguments
        assert not set("\x1b\x07\r\u202e\x9b\x7f") & set(written), (arguments, written)
        assert "--json" not in arguments or json.loads(told.out), arguments


def test_a_database_without_winners_says_where_its_trials_are(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "tried.db"
    with Store.open(path) as store:
        tried = Trial(problem(4096), candidate(1), ENVIRONMENT, PROTOCOL, "crash", "why")
        store.add_trials(store.start_run(ENVIRONMENT), [tried])
    told = command("registry", "results", "--db", path)
    assert (told.code, told.out) == (0, "no winner; `registry results --trials` lists what was tried\n")
    assert json.loads(command("registry", "results", "--db", path, "--json").out) == []
