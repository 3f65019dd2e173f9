"""The benchmark of packed sequences: its lengths and peers, and a whole run of it on a CPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks.varlen import peers
from benchmarks.varlen.__main__ import OURS, PackedHeads, VarlenRow, main, rows, table
from benchmarks.varlen.lengths import DISTRIBUTIONS, offsets_of
from benchmarks.varlen.timing import VarlenRace
from registry.contracts import ATTENTION_VARLEN

PACKED = PackedHeads(5, 4, 2, 16, torch.float32, torch.device("cpu"))


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize(("tokens", "sequences"), [(5, 5), (64, 5), (16384, 8)])
def test_lengths_are_positive_and_sum_to_the_tokens(name: str, tokens: int, sequences: int) -> None:
    lengths = DISTRIBUTIONS[name](tokens, sequences)
    assert (len(lengths), sum(lengths), offsets_of(lengths)[-1]) == (sequences, tokens, tokens)
    assert min(lengths) >= 1


def test_distributions_differ() -> None:
    longest = {name: max(made(16384, 8)) for name, made in DISTRIBUTIONS.items()}
    assert longest["equal"] == 2048 < longest["uniform"] < longest["skewed"]


@pytest.mark.parametrize("peer", [peers.sequence_by_sequence, peers.padded])
def test_peers_compute_the_op(peer: peers.VarlenPeer) -> None:
    lengths = DISTRIBUTIONS["skewed"](70, 5)
    values = PACKED.draw(lengths)
    problem = ATTENTION_VARLEN.pose(ATTENTION_VARLEN.arguments(values))
    right, _ = ATTENTION_VARLEN.reference(*values)
    torch.testing.assert_close(peer(problem, values, lengths)(*values), right)


def test_what_is_not_installed_is_told() -> None:
    lengths = DISTRIBUTIONS["equal"](70, 5)
    values = PACKED.draw(lengths)
    problem = ATTENTION_VARLEN.pose(ATTENTION_VARLEN.arguments(values))
    made, faults = peers.calls(problem, values, lengths, without=["SDPA, padded"])
    assert "SDPA, sequence by sequence" in made
    assert "SDPA, padded" not in {**made, **faults}
    assert {*made, *faults} == {*peers.PEERS} - {"SDPA, padded"}
    assert all(": " in fault for fault in faults.values())


def test_a_contestant_that_computes_something_else_or_fails_is_out() -> None:
    values = PACKED.draw([8, 8])

    def failing(*_: object) -> torch.Tensor:
        raise RuntimeError("no such kernel")

    right = values[0] * 0.0
    race = VarlenRace({"right": lambda *_: right, "wrong": lambda *_: right + 1.0, "fails": failing}, values, right)
    assert race.faults == {
        "wrong": "ValueError: its output differs by 1 from torch's attention",
        "fails": "RuntimeError: no such kernel",
    }
    assert {name: len(times) for name, times in race.times(4).items()} == {"right": 4}


def test_a_nan_in_an_output_is_told() -> None:
    values = PACKED.draw([8, 8])
    race = VarlenRace({"nan": lambda q, *_: q * float("nan")}, values, values[0])
    assert "nan" in race.faults


def test_rows_have_medians_rates_and_ratios_of_rounds() -> None:
    times = {OURS: [10.0, 20.0, 30.0], "peer": [20.0, 10.0, 60.0]}
    found = rows((64, "equal", 16), times, 2 * 10**9, {"peer"}, {"absent": "ModuleNotFoundError: no"})
    assert found == [
        VarlenRow(64, "equal", 16, OURS, 20.0, 100.0, 1.0, True),
        VarlenRow(64, "equal", 16, "peer", 20.0, 100.0, 2.0, False),
        VarlenRow(64, "equal", 16, "absent", fault="ModuleNotFoundError: no"),
    ]
    lines = table(found).splitlines()[2:]
    assert lines[0] == "| 64 | equal | 16 | registry | 20 | 100 | 1.000 | graph |"
    assert lines[2] == "| 64 | equal | 16 | absent | - | - | - | ModuleNotFoundError: no |"


def test_the_flop_are_those_of_pairs_that_causality_leaves() -> None:
    assert PACKED.flop([1, 2, 3]) == 4 * 4 * 16 * (1 + 3 + 6)


def test_a_run_on_a_cpu_leaves_its_results_and_its_environment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["--tokens", "40", "--sequences", "4", "--heads", "4", "--kv-heads", "2", "--head-dim", "16"]
    run = ["--device", "cpu", "--dtype", "float32", "--rounds", "2", "--write", str(tmp_path)]
    assert main([*sizes, *run]) == 0
    printed = capsys.readouterr().out
    assert (tmp_path / "attention_varlen.md").read_text() == printed
    record = json.loads((tmp_path / "attention_varlen.json").read_text())
    assert record["environment"]["torch"] == torch.__version__
    timed = {(row["lengths"], row["contestant"]) for row in record["rows"] if not row["fault"]}
    wanted = {OURS, "torch.native", "SDPA, sequence by sequence", "SDPA, padded"}
    assert {(name, each) for name in DISTRIBUTIONS for each in wanted} <= timed
    assert all(row["us"] > 0.0 for row in record["rows"] if not row["fault"])


@pytest.mark.parametrize("wrong", [["--tokens", "4"], ["--heads", "6", "--kv-heads", "4"]])
def test_sizes_that_do_not_fit_are_told(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--device", "cpu", *wrong]) == 2
    assert "expected a token for each sequence" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="measures where there is a GPU")
def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "needs a GPU" in capsys.readouterr().err
