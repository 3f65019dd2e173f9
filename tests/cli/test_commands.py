"""What the commands tell: listings, explanations, results and the exchange of results."""

from __future__ import annotations

import json
from pathlib import Path

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from tuning_db import CandidateKey, Decision, Environment, ProblemKey, Protocol, Store, Trial

from .conftest import Command

ROGUES = Path(__file__).parents[1] / "tuner" / "rogues.py"
ENVIRONMENT = Environment({"type": "cuda", "name": "NVIDIA H200"}, {"torch": "2.11.0"})
PROBLEM = ProblemKey("square", 1, {"n": 4096, "dtype": "float32"}, ("dtype",))
CANDIDATE = CandidateKey("triton.block", "f" * 64, {"BLOCK": 1024})
PROTOCOL = Protocol("cold", {"rounds": 10})


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """A winner, and a trial that failed."""
    path = tmp_path / "some.db"
    with Store.open(path) as store:
        run = store.start_run(ENVIRONMENT)
        store.add_trials(
            run, [Trial(PROBLEM, CANDIDATE, ENVIRONMENT, PROTOCOL, "wrong_result", "off by\n0.5 at [3]", None)]
        )
        store.publish(
            run,
            Decision(
                PROBLEM, ENVIRONMENT, PROTOCOL, CANDIDATE, 5.0, 4.5, verdict="new", baselines={"torch.native": 1.5}
            ),
        )
    return path


def test_ops_lists_dimensions_schema_and_implementations(command: Command) -> None:
    told = command("registry", "ops")
    assert told.code == 0
    assert "softmax(Tensor x, int dim=-1) -> Tensor y" in told.out
    assert "dynamic: rows; static: cols, dtype" in told.out
    assert "torch.native" in told.out
    listed = {op["name"]: op for op in json.loads(command("registry", "ops", "--json").out)}
    assert {"softmax", "gemm_int4"} <= listed.keys()
    assert {"name": "torch.native", "device_types": ["cpu", "cuda"]} in listed["softmax"]["implementations"]


def test_plugins_lists_the_box_and_a_file(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("import registry\n\n@registry.implements('square')\ndef ones():\n    return []\n")
    told = command("registry", "plugins", "--plugin", file)
    assert told.code == 0
    assert told.out.splitlines()[0].split()[:3] == ["plugin", "distribution", "version"]
    listed = json.loads(command("registry", "plugins", "--plugin", file, "--json").out)
    assert {"torch", "triton", "cuda", "cpp"} <= {plugin["name"] for plugin in listed}
    assert listed[-1]["name"].endswith("mine.py")


def test_a_blocked_plugin_is_listed_as_such(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNEL_REGISTRY_BLOCK", "cpp")
    (line,) = [line for line in command("registry", "plugins").out.splitlines() if line.startswith("cpp ")]
    assert "blocked" in line


def test_explain_needs_no_data(command: Command) -> None:
    dims = ["rows=64", "cols=512", "dtype=float32"]
    told = command("registry", "explain", "softmax", *dims, "--device", "cpu")
    assert told.code == 0
    assert "softmax(rows=64, cols=512, dtype=float32)" in told.out
    data = json.loads(command("registry", "explain", "softmax", *dims, "--device", "cpu", "--json").out)
    assert data["step"] == "default"
    assert "triton.row" in {other["name"] for other in data["others"]}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sofmax", "rows=1"], "unknown op 'sofmax'"),
        (["softmax", "rows"], "'rows' is not DIM=VALUE"),
        (["softmax", "rows=1", "cols=8", "dtype=float32", "depth=3"], "unknown dimension of softmax 'depth'"),
        (["softmax", "rows=0", "cols=8", "dtype=float32"], "rows must be a positive integer"),
        (["softmax", f"rows={'[' * 3000}", "cols=8", "dtype=float32"], "rows must be a positive integer, got '[[["),
        (["softmax", "rows=2024-13-45", "cols=8", "dtype=float32"], "rows must be a positive integer, got '2024-13"),
        (["softmax", "rows=1"], "dimensions missing: cols, dtype"),
        (["softmax", "rows=1", "rows=2", "cols=8", "dtype=float32"], "rows was given twice"),
    ],
)
def test_explain_refuses(command: Command, arguments: list[str], message: str) -> None:
    told = command("registry", "explain", *arguments)
    assert told.code == 2
    assert message in told.err


def test_results_shows_the_winners(command: Command, database: Path) -> None:
    told = command("registry", "results", "--db", database)
    assert told.code == 0
    header, line = told.out.splitlines()
    assert header.split()[:3] == ["problem", "hardware", "winner"]
    for part in ("square n=4096 dtype=float32", "NVIDIA H200", "triton.block", "BLOCK=1024", "0.90", "1.50", "new"):
        assert part in line
    (data,) = json.loads(command("registry", "results", "--db", database, "--json").out)
    assert data["speedup"] == {"torch.native": 1.5}
    assert data["fraction_of_floor"] == pytest.approx(0.9)


def test_results_can_be_narrowed(command: Command, database: Path) -> None:
    for arguments in (["--op", "softmax"], ["--device", "cpu"], ["--device", "cpu", "--trials"]):
        assert json.loads(command("registry", "results", "--db", database, "--json", *arguments).out) == []


def test_an_op_that_is_neither_installed_nor_stored_is_refused(
    command: Command, database: Path, tmp_path: Path
) -> None:
    file = tmp_path / "results.jsonl"
    for arguments in (["results"], ["results", "--trials"], ["export", file]):
        told = command("registry", *arguments, "--db", database, "--op", "sofmax")
        assert told.code == 2
        assert "unknown op 'sofmax'" in told.err
        assert "did you mean softmax?" in told.err
    assert not file.exists()


def test_import_tells_file_and_line(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "slip.jsonl"
    file.write_text("no export\n")
    told = command("registry", "import", file, "--db", tmp_path / "other.db")
    assert told.code == 2
    assert "slip.jsonl, line 1: " in told.err


def test_results_shows_every_trial_a_line_each(command: Command, database: Path) -> None:
    lines = command("registry", "results", "--db", database, "--trials").out.splitlines()
    assert len(lines) == 2
    assert "wrong_result" in lines[1]
    assert "off by 0.5 at [3]" in lines[1]


def test_results_travel_as_a_file(command: Command, database: Path, tmp_path: Path) -> None:
    file, other = tmp_path / "results.jsonl", tmp_path / "other.db"
    assert "written to" in command("registry", "export", file, "--db", database).out
    assert command("registry", "export", "-", "--db", database).out == file.read_text()
    assert command("registry", "import", file, "--db", other).code == 0
    assert "0 new records" in command("registry", "import", file, "--db", other).out
    here, there = (json.loads(command("registry", "results", "--json", "--db", db).out) for db in (database, other))
    assert here == there


def test_export_overwrites_nothing_and_import_wants_an_export(command: Command, database: Path, tmp_path: Path) -> None:
    file = tmp_path / "there.jsonl"
    file.write_text("not an export\n")
    assert command("registry", "export", file, "--db", database).code == 2
    assert file.read_text() == "not an export\n"
    assert command("registry", "import", file, "--db", tmp_path / "new.db").code == 2
    assert command("registry", "import", tmp_path / "absent.jsonl", "--db", tmp_path / "new.db").code == 2


def test_a_dry_run_lists_candidates_and_why_others_are_out(command: Command, shapes: Path, tmp_path: Path) -> None:
    told = command("tune", "--shapes", shapes, "--device", "cpu", "--dry-run")
    assert told.code == 0
    assert "square n=4096 dtype=float32" in told.out
    assert "out: it runs on cuda, not on cpu" in told.out
    assert not (tmp_path / "tuning.db").exists()
    (data,) = json.loads(command("tune", "--shapes", shapes, "--device", "cpu", "--dry-run", "--json").out)
    reasons = {one["name"]: one["unsupported"] for one in data["implementations"]}
    assert reasons["torch.native"] == []
    assert reasons["triton.block"] == ["it runs on cuda, not on cpu"]


def test_many_sizes_to_which_winners_transfer_are_one_problem_unless_each_is_wanted(
    command: Command, tmp_path: Path
) -> None:
    path = tmp_path / "growing.yaml"
    path.write_text(f"softmax:\n  - {{rows: 8, cols: {list(range(1000, 1020))}, dtype: float32}}\n")
    planned = ("tune", "--shapes", path, "--device", "cpu", "--dry-run", "--implementations", "torch.native")
    told = command(*planned)
    assert "1 problem to tune" in told.out
    assert "cols=1019, dtype=float32) is tuned for 20 problems with cols from 1000 to 1019" in " ".join(
        told.out.split()
    )
    assert len(json.loads(command(*planned, "--json").out)) == 1
    assert "20 problems to tune" in command(*planned, "--all-sizes").out


def test_what_does_not_fit_the_device_is_skipped_with_a_reason(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "large.yaml"
    path.write_text("square:\n  - {n: [1024, 99999999999999], dtype: float32}\n")
    told = command("tune", "--shapes", path, "--device", "cpu", "--dry-run", "--implementations", "torch.native")
    assert told.code == 0
    assert "skipped: needs" in told.out
    assert "1 problem to tune" in told.out


@pytest.mark.usefixtures("own_lock", "few_blocks")
def test_tune_ends_with_a_table_and_a_winner_and_keeps_studies_of_any_sampler_where_it_is_told(
    command: Command, shapes: Path, tmp_path: Path
) -> None:
    # from a plugin file, so that nothing is compiled
    told = command(
        "tune", "--shapes", shapes, "--device", "cpu", "--trials", "3", "--db", tmp_path / "new.db",
        "--plugin", ROGUES, "--implementations", "rogue.honest,rogue.chatters",
        "--sampler", "tpe", "--storage", tmp_path / "studies.log",
    )  # fmt: skip
    assert told.code == 0, told
    assert "rogue.honest" in told.out
    assert "1 problem, 3 trials in " in told.out
    with Store.open(tmp_path / "new.db", create=False) as store:
        assert [winner.candidate.implementation for winner in store.winners(op="square")] == ["rogue.honest"]
        stored = {trial.uid: trial.candidate.implementation for trial in store.trials(op="square")}
    (study,) = optuna.study.get_all_study_summaries(JournalStorage(JournalFileBackend(str(tmp_path / "studies.log"))))
    loaded = optuna.load_study(
        study_name=study.study_name, storage=JournalStorage(JournalFileBackend(str(tmp_path / "studies.log")))
    )
    assert study.study_name.startswith("square(n=4096, dtype=float32), run ")
    assert {trial.user_attrs["uid"]: trial.params["implementation"] for trial in loaded.trials} == stored
    assert all(trial.state.is_finished() for trial in loaded.trials)


FAULTY = """
import registry

class Faulty(registry.Implementation):
    op, name, device_types = "square", "mine.faulty", frozenset({"cpu"})
    def unsupported(self, problem, device):
        raise ValueError(f"no {problem.n}")
    def bind(self, problem, config, device, built):
        raise NotImplementedError

@registry.implements("square")
def mine():
    return [Faulty()]
"""


@pytest.mark.filterwarnings("default:mine.faulty")
def test_a_dry_run_tells_a_fault_of_several_problems_once(command: Command, tmp_path: Path) -> None:
    file, several = tmp_path / "faulty.py", tmp_path / "several.yaml"
    file.write_text(FAULTY)
    several.write_text("square:\n  - {n: [4, 8, 16], dtype: float32}\n")
    options = ["--shapes", several, "--plugin", file, "--device", "cpu", "--implementations", "mine.faulty"]
    told = command("tune", *options, "--dry-run").out
    assert told.count("raised ValueError") == 1
    assert "fault: mine.faulty of square: unsupported() raised ValueError: no 4" in told
    assert "(3 problems)" in told
    explained = command("registry", "explain", "square", "n=4", "dtype=float32", "--plugin", file).out
    assert "not    mine.faulty: unsupported() raised ValueError: no 4" in explained
