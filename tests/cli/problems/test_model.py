"""``tune --model``: the problems of a model by its config."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ..conftest import Command


def test_a_dry_run_lists_and_saves_the_problems_of_a_model(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "gpt2.yaml"
    told = command(
        "tune", "--model", "gpt2", "--batch", "2,3", "--context", "64", "--op", "layer_norm,gelu", "--device", "cpu",
        "--dry-run", "--json", "--save-shapes", path,
    )  # fmt: skip
    assert (told.code, told.err) == (0, "")
    listed = [(plan["op"], plan["dims"].get("rows")) for plan in json.loads(told.out)]
    assert listed == [("gelu", None)] * 4 + [("layer_norm", rows) for rows in (128, 2, 192, 3)]
    again = command("tune", "--shapes", path, "--device", "cpu", "--dry-run", "--json")
    assert json.loads(again.out) == json.loads(told.out)
    assert path.read_text().startswith("# Derived by kernel-registry")


def test_a_dry_run_tells_what_it_leaves_out(command: Command) -> None:
    told = command(
        "tune", "--model", "deepseek-v3", "--batch", "1", "--op", "embedding", "--device", "cpu", "--dry-run"
    )
    assert told.code == 0
    assert "note: a prompt's attention, keys of 192 and values of 128 elements" in told.out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "no problems: expected --shapes"),
        (["--shapes", "a.yaml", "--model", "gpt2"], "--shapes and --model were given"),
        (["--shapes", "a.yaml", "--batch", "1"], "--batch without --model"),
        (["--model", "gpt2", "--batch", "1,0"], "--batch '0'"),
        (["--model", "gpt2", "--context", "x"], "--context 'x'"),
        (["--model", "gpt2", "--quantize", "int3"], "--quantize 'int3'"),
        (["--model", "gpt2", "--group-size", "0"], "--group-size 0"),
        (["--model", "gpt2", "--group-size", "64"], "--group-size beside --quantize none"),
        (["--model", "gpt2", "--group-size", "64", "--quantize", "fp8"], "--group-size beside --quantize fp8"),
        (["--model", "gpt2", "--symmetric", "--quantize", "w8a8"], "--symmetric beside --quantize w8a8"),
        (["--model", "gpt2", "--lm-head"], "--lm-head beside --quantize none"),
        (["--model", "gpt2", "--page", "16", "--training"], "--page beside --training"),
        (["--shapes", "a.yaml", "--lm-head", "--symmetric"], "--symmetric, --lm-head without --model"),
        (["--model", "gpt2", "--tensor-parallel", "0"], "--tensor-parallel 0"),
        (["--model", "gpt2", "--page", "-1"], "--page -1"),
        (["--model", "gpt2", "--model-dtype", "int9"], "dtype"),
        (["--model", "gpt2", "--op", "softmax"], "softmax: the model does not call it"),
        (["--model", "gpt2", "--op", "sofmax"], "sofmax"),
        (["--model", "gpt-2"], "neither a config.json nor a model in the box"),
    ],
)
def test_what_a_model_cannot_be_told_is_one_line(command: Command, arguments: list[str], told: str) -> None:
    ran = command("tune", *arguments, "--device", "cpu", "--dry-run")
    assert (ran.code, ran.out) == (2, "")
    assert told in ran.err
