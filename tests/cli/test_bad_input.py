"""Whatever the user gets wrong: one line, a hint, exit code 2, no traceback, and nothing tuned."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
import torch

from registry import PluginError
from registry.discovery.catalog import Catalog
from tuning_db import Store

from .. import fresh
from .conftest import Command, Told

SQUARE = "square: [{n: 1, dtype: float32}]\n"


def assert_refused(told: Told, message: str, hint: str) -> None:
    first, _, rest = told.err.rstrip("\n").partition("\n")
    assert told.code == 2, told
    assert message in first
    assert rest.startswith("  ")
    assert hint in rest
    assert "Traceback" not in told.err
    assert told.out == ""


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["--op", "sofmax"], "unknown op 'sofmax'", "did you mean softmax?"),
        (["--op", "softmax"], "no shapes for softmax", "the file has: square"),
        (["--op", ""], "--op names nothing", "leave --op out for all"),
        (["--implementations", ","], "--implementations names nothing", "leave --implementations out for all"),
        (["--device", ""], "'' is not a device", "expected cpu, cuda or cuda:INDEX"),
        (["--implementations", "torch.nativ"], "unknown implementation of square 'torch.nativ'", "torch.native"),
        (["--device", "cuda:77"], "cuda:77", "use "),
        (["--device", "cpu:3"], "cpu:3: all of this machine's cores are one device", "use cpu"),
        (["--device", "gpu"], "'gpu' is not a device", "expected cpu, cuda or cuda:INDEX"),
        (["--budget", "0"], "--budget 0: expected more than 0", "see tune --help"),
        (["--budget", "soon"], "'--budget': 'soon' is no number", "see tune --help"),
        (["--budget", "nan"], "--budget nan: expected more than 0", "see tune --help"),
        (["--trials", "1.5"], "'--trials': '1.5' is no whole number", "see tune --help"),
        (["--trials", "-3"], "--trials -3: expected more than 0", "see tune --help"),
        (["--sampler", "cmaes"], "unknown sampler 'cmaes'", "known: gp, nsgaii, random, registry, tpe"),
        (["--sampler", "absent:Sampler"], "sampler 'absent:Sampler': No module named 'absent'", "PYTHONPATH"),
        (["--storage", "nosuch://place"], "storage 'nosuch://place'", "expected a file, or an SQLAlchemy URL"),
        (["--plugin", "/"], "--plugin /: a folder", "expected a Python file"),
        (["--plugin", "absent.py"], "absent.py: no such file", "expected a Python file"),
        (["--plugin", "a" * 5000], "aaa: File name too long", "expected a Python file"),
        (["--plugin", "\udcff.py"], "\\udcff.py: no such file", "expected a Python file"),
        (["--nonsense"], "--nonsense", "see tune --help"),
        (["softmax"], "softmax", "see tune --help"),
    ],
)
def test_tune_refuses(command: Command, shapes: Path, arguments: list[str], message: str, hint: str) -> None:
    assert_refused(command("tune", "--shapes", shapes, *arguments), message, hint)


def test_tune_without_shapes_is_refused(command: Command) -> None:
    assert_refused(command("tune"), "--shapes", "see tune --help")


def test_a_slip_in_the_shapes_is_told_with_its_line(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "slip.yaml"
    path.write_text("softmax:\n  - {rows: 1, cols: 8, dtype: float32}\n  - {rows: 0, cols: 8, dtype: float32}\n")
    assert_refused(
        command("tune", "--shapes", path), "slip.yaml, line 3, softmax[1].rows: got 0", "expected a positive integer"
    )
    assert_refused(command("tune", "--shapes", tmp_path / "no.yaml"), "no.yaml: no such file", "expected a YAML file")


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("[" * 5000, "slip.yaml, line 1: nested too deeply", "expected op: [{dimension: [value, ...]}, ...]"),
        (f"{SQUARE}sqare: []\n", "slip.yaml, line 2, sqare: unknown op 'sqare'", "did you mean square?"),
        (f"{SQUARE}acme::row_sum: []\n", "line 2, acme::row_sum: unknown op", "is the plugin of acme installed, or"),
        (
            f"{SQUARE}gelu: [{{n: 0, dtype: float32, approximate: tanh}}]\n",
            "line 2, gelu[0].n: got 0",
            "expected a pos",
        ),
    ],
    ids=["bomb", "unknown", "stranger", "other"],
)
def test_a_slip_anywhere_in_the_file_is_one_line_even_when_another_op_is_asked_for(
    command: Command, tmp_path: Path, text: str, message: str, hint: str
) -> None:
    path = tmp_path / "slip.yaml"
    path.write_text(text)
    assert_refused(command("tune", "--shapes", path, "--op", "square"), message, hint)


def test_dimensions_that_no_call_could_have_are_refused(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "shapes.yaml"
    path.write_text(
        "gemm_int4:\n  - {m: 1, n: 64, k: 100, group_size: 64, bits: 4, symmetric: false, dtype: bfloat16}\n"
    )
    told = command("tune", "--shapes", path, "--dry-run")
    assert told.code == 2
    assert "shapes.yaml, line 2, gemm_int4[0]: " in told.err


def test_a_device_that_is_not_there_is_told_apart(command: Command, shapes: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert_refused(command("tune", "--shapes", shapes, "--device", "cuda"), "no GPU is usable here", "--device cpu")


def broken_databases(folder: Path) -> dict[str, str]:
    """URLs of databases that must not be touched, by what is wrong with them."""
    (folder / "corrupt.db").write_bytes(b"this is no database" * 100)
    (folder / "folder.db").mkdir()
    newer = folder / "newer.db"
    Store.open(newer).close()
    with sqlite3.connect(newer) as connection:
        (table,) = connection.execute("SELECT name FROM sqlite_master WHERE name LIKE '%version%'").fetchone()
        (column,) = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")][:1]
        connection.execute(f"UPDATE {table} SET {column} = '9999'")
    connection.close()
    return {
        "corrupt": str(folder / "corrupt.db"),
        "folder": str(folder / "folder.db"),
        "newer": str(newer),
        "unreachable": "postgresql://nobody@127.0.0.1:1/absent",
        "unknown": "oracle://somewhere/db",
    }


@pytest.mark.parametrize("fault", ["corrupt", "folder", "newer", "unreachable", "unknown"])
def test_a_database_that_cannot_be_used_is_refused_and_left_alone(
    command: Command, shapes: Path, tmp_path: Path, fault: str
) -> None:
    url = broken_databases(tmp_path)[fault]
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    for arguments in (["tune", "--shapes", shapes, "--implementations", "torch.native"], ["registry", "results"]):
        told = command(*arguments, "--db", url)
        assert told.code == 2, told
        assert "Traceback" not in told.err
        assert len(told.err.splitlines()) <= 3
    assert {path: path.read_bytes() for path in before} == before


def test_a_read_only_database_is_refused(command: Command, shapes: Path, tmp_path: Path) -> None:
    Store.open(tmp_path / "shut.db").close()
    url = f"sqlite:///{tmp_path}/shut.db?mode=ro"
    told = command("tune", "--shapes", shapes, "--implementations", "torch.native", "--db", url)
    assert_refused(told, "can only be read", "KERNEL_REGISTRY_DB")


def test_results_of_a_database_that_is_not_there_makes_none(command: Command, tmp_path: Path) -> None:
    told = command("registry", "results", "--db", tmp_path / "absent.db")
    assert told.code == 2
    assert not (tmp_path / "absent.db").exists()


def test_a_real_process_ends_with_code_2_and_no_traceback(tmp_path: Path) -> None:
    done = fresh.run("-m", "registry.cli.main", "tune", "--shapes", tmp_path / "no.yaml", limit_s=120)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.splitlines()[0].startswith("registry: ")
    assert "no such file" in done.stderr


@pytest.mark.parametrize("arguments", [["report", "--out"], ["import"], ["export"], ["results", "--db"]])
@pytest.mark.parametrize("name", ["a" * 5000, "\udcff", "\udcff/" * 3000])
def test_a_name_that_no_file_can_have_is_told_in_a_line(
    command: Command, tmp_path: Path, arguments: list[str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNEL_REGISTRY_DB", str(tmp_path / "some.db"))
    Store.open(tmp_path / "some.db").close()
    monkeypatch.chdir(tmp_path)
    told = command("registry", *arguments, name)
    assert told.code in {0, 2}
    assert "Traceback" not in told.err


def test_a_plugin_file_may_have_a_name_that_is_no_utf8(tmp_path: Path) -> None:
    path = tmp_path / "\udcff.py"
    path.write_text("import registry\n")
    with pytest.raises(PluginError, match="it registers nothing"):
        Catalog().load_file(path)


@pytest.mark.parametrize(
    "arguments",
    [
        ["registry", "explain", "square", "n=1\udcff", "dtype=float32"],
        ["registry", "results", "--op", "square\udcff"],
        ["registry", "release", "export", "mine\udcff", "release.jsonl"],
        ["tune", "--shapes", "shapes\udcff.yaml"],
    ],
)
def test_arguments_that_are_no_utf8_are_refused_in_a_line(
    command: Command, shapes: Path, tmp_path: Path, arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNEL_REGISTRY_DB", str(tmp_path / "tuning.db"))
    Store.open(tmp_path / "tuning.db").close()
    told = command(*arguments)
    assert (told.code, told.out) == (2, "")
    assert "Traceback" not in told.err
    assert "\\udcff" in told.err
