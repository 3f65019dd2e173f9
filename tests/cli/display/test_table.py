"""Tables in a terminal of 80 columns and wider: no line is too long, no word is broken, nothing is left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from registry.cli.display import text
from registry.cli.display.table import Column, Group, print_problems, print_table
from registry.cli.display.text import pairs, say, wrapped
from registry.cli.display.winners_table import print_results
from registry.problem import Problem
from registry.tuner.events import Incumbent, Result
from tuning_db import CandidateKey, Decision, Environment, ProblemKey, Protocol, Store, Trial
from tuning_db.exchange import lines

from ...tiers import one_of_each
from ..conftest import Command

SHIPPED = Path(__file__).parents[3] / "registry" / "shipped" / "nvidia-h200.jsonl"
WIDTHS = pytest.mark.parametrize("width", one_of_each([80, 100, 160]))

LONG = "acme::attention_with_paged_key_value_cache"
DIMS = {
    "batch": 16, "causal": True, "head_dim": 128, "heads": 32, "kv_heads": 8, "kv_len": 131072, "layout": "NHD",
    "lengths": "uniform", "page": 16, "q_len": 4096, "dtype": "bfloat16",
}  # fmt: skip
NAMES = ["torch.compile_max_autotune_no_cudagraphs", "acme.persistent_warp_specialised_two_consumer_groups"]
CONFIG = {"BLOCK_M": 128, "BLOCK_N": 256, "num_consumer_groups": 2, "num_stages": 4, "num_warps": 16, "split_kv": 8}


Shipped = tuple[Path, list[Decision]]


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Shipped:
    """The winners of the package in a database."""
    path = tmp_path_factory.mktemp("shipped") / "tuning.db"
    with SHIPPED.open(encoding="utf-8") as stream, Store.open(path) as store:
        store.add_lines(lines(stream))
        return path, store.winners()


def words(*told: object) -> set[str]:
    return {word for one in told for word in str(one).split()}


def shown(out: str) -> set[str]:
    """The words of an output, without the commas between them."""
    return words(out) | words(out.replace(",", " "))


def fits(out: str, width: int) -> bool:
    return max(map(len, out.splitlines())) <= width


def results() -> list[Result]:
    """Two problems that differ in some of many dimensions, and two that differ in nearly all."""
    others = [
        DIMS,
        DIMS | {"q_len": 1},
        {name: 2 * value if isinstance(value, int) else value for name, value in DIMS.items()},
    ]
    told = []
    for number, dims in enumerate(others):
        name, incumbent = NAMES[number % 2], NAMES[(number + 1) % 2]
        told.append(
            Result(
                Problem(LONG, dims), name, CONFIG, 123456.7, 100000.0, {"torch.native": 1234.5, "torch.compile": 2.0},
                "replaced", incumbent=Incumbent(incumbent, CONFIG, stored=True), ratio=1.4, low=1.3, high=1.5,
                noise=0.123, ties=(f"{incumbent} {pairs(CONFIG)}",),
            )
        )  # fmt: skip
    return told


@WIDTHS
def test_the_closing_table_of_long_names_and_many_dimensions_fits(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    print_results([*results(), replace(results()[0], problem=Problem("softmax", {"rows": 1, "cols": 2}))])
    out = capsys.readouterr().out
    assert fits(out, width)
    assert words(LONG, *NAMES, pairs(DIMS), pairs(CONFIG), "softmax rows=1 1.40 (1.30 to 1.50) 12.3%") <= shown(out)


@WIDTHS
@pytest.mark.thorough
def test_the_shipped_winners_fit(
    width: int, command: Command, shipped: Shipped, monkeypatch: pytest.MonkeyPatch
) -> None:
    database, winners = shipped
    whole = command("registry", "results", "--db", database).out
    assert len(whole.splitlines()) == 1 + len(winners), "in a pipe a winner is a line"
    monkeypatch.setenv("COLUMNS", str(width))
    out = command("registry", "results", "--db", database).out
    assert fits(out, width)
    told = shown(out)
    assert shown(whole) - {"-", "hardware", "when"} <= told
    for winner in winners:
        assert words(winner.problem.op, pairs(winner.problem.dims), winner.candidate.implementation) <= told


@WIDTHS
def test_every_trial_fits(width: int, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    message = f"/very/long/path/{'x' * 60}/kernel.py:12: a fault of {NAMES[0]} that takes a good many words to be told"
    database = tmp_path / "trials.db"
    with Store.open(database) as store:
        environment = Environment({"type": "cuda", "name": "NVIDIA H200"}, {})
        run = store.start_run(environment)
        keys = [Problem(LONG, DIMS | {"q_len": length}) for length in (1, 4096)]
        store.add_trials(
            run,
            [
                Trial(key(problem), candidate(name), environment, Protocol("cold", {}), status, message, 123456.7)
                for problem in keys
                for name, status in zip(NAMES, ("out_of_resources", "wrong_result"), strict=True)
            ],
        )
    arguments = ["registry", "results", "--trials", "--db", database]
    whole = command(*arguments).out
    assert len(whole.splitlines()) == 5
    monkeypatch.setenv("COLUMNS", str(width))
    out = command(*arguments).out
    assert words(LONG, pairs(DIMS), pairs(CONFIG), *NAMES, "NVIDIA H200", message[:120]) <= shown(out)
    long = [line.strip() for line in out.splitlines() if len(line) > width]
    assert all(" " not in line for line in long), "only a word that is longer than its place"


def key(problem: Problem) -> ProblemKey:
    return ProblemKey(problem.op, 1, problem.dims, ("dtype",))


def candidate(name: str) -> CandidateKey:
    return CandidateKey(name, "f" * 64, CONFIG)


@WIDTHS
@pytest.mark.parametrize(
    "arguments",
    [
        ["ops"],
        ["plugins"],
        ["doctor"],
        ["explain", "softmax", "rows=16", "cols=2048", "dtype=float32", "--device", "cpu"],
    ],
)
@pytest.mark.few(1)
def test_what_other_commands_say_fits(
    width: int, arguments: Sequence[str], command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = command("registry", *arguments).out
    monkeypatch.setenv("COLUMNS", str(width))
    out = command("registry", *arguments).out
    commands = [line for line in out.splitlines() if line.startswith("  tune ")]
    rest = "\n".join(line for line in out.splitlines() if line not in commands)
    for line in rest.splitlines():
        assert len(line) <= width or len(line.split()) == 1, line
    changing = {word for word in shown(whole) if word.replace(".", "").isdigit()}  # milliseconds, MiB
    assert shown(whole) - changing <= shown(out)


@pytest.mark.parametrize("width", range(20, 200, 7))
@pytest.mark.few(8)
def test_no_width_breaks_a_word(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    print_results(results())
    out = capsys.readouterr().out
    assert words(LONG, *NAMES, pairs(DIMS), pairs(CONFIG)) <= shown(out)
    for line in out.splitlines():
        assert len(line) <= width or len(line.split()) == 1, line


def test_what_all_rows_share_leaves_the_table(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    columns = [Column("µs", right=True), Column("hardware", lifts=True, label="on"), Column("when", lifts=True)]
    posed = [Problem("gemm_int4", {"m": m, "n": 4096, "bits": 4, "dtype": "bfloat16"}) for m in (16, 1)]
    print_problems(columns, [(one, [f"{one.m}.5", "H200", f"day {one.m}"]) for one in posed])
    assert capsys.readouterr().out.splitlines() == [
        "problem    µs  when",
        "gemm_int4 n=4096 bits=4 dtype=bfloat16, on H200",
        "m=1       1.5  day 1",
        "m=16     16.5  day 16",
    ]


def test_a_column_that_is_empty_everywhere_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    print_table([Column("a"), Column("b"), Column("c", right=True)], [Group("", [["x", "", "1"], ["y", "", "22"]])])
    assert capsys.readouterr().out.splitlines() == ["a   c", "x   1", "y  22"]


def test_a_line_is_wrapped_between_words_and_a_long_word_has_its_own(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert wrapped("  one two three", 9, hang=4) == ["  one two", "    three"]
    assert wrapped("one abcdefghijklmnop two", 9, hang=2) == ["one", "  abcdefghijklmnop", "  two"]
    monkeypatch.setenv("COLUMNS", "12")
    say("  a-hyphen does-not break")
    assert capsys.readouterr().out.splitlines() == ["  a-hyphen", "    does-not", "    break"]


def test_of_a_compilers_many_lines_a_table_has_the_one_with_the_error() -> None:
    told = "the build of square failed:\n  In file a.h:1,\n  main.cpp:2:52: error: 'y' was not declared\n  | ^\n"
    assert text.shortened(told) == "the build of square failed: main.cpp:2:52: error: 'y' was not declared"
    assert text.shortened("one\n  two\n") == "one two"
    assert text.shortened("x" * 400) == "x" * 300 + "…"
    assert text.shortened("") == ""
