"""``registry scaffold``: what it writes, and what it refuses in a line and a hint."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..conftest import Command

REFERENCE = ("--op", "acme::double", "--from", "reference", "--function", "mine.py")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an author's file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "import torch\n\n\ndef double(x):\n    return x * 2\n\n\ndef inputs():\n    return torch.randn(6, 40)\n"
    )
    return tmp_path


def test_a_file_is_written_and_never_overwritten(command: Command, here: Path) -> None:
    told = command("registry", "scaffold", *REFERENCE, "--no-check")
    assert (told.code, told.err, told.out) == (0, "", "acme.py written\n")
    (here / "acme.py").write_text("mine")
    told = command("registry", "scaffold", *REFERENCE, "--no-check")
    assert told.code == 2
    assert "acme.py exists already" in told.err
    assert (here / "acme.py").read_text() == "mine"


@pytest.mark.thorough
def test_a_file_is_checked(command: Command, here: Path) -> None:
    told = command("registry", "scaffold", *REFERENCE)
    assert told.code == 0, told.out
    assert "ok      contract: acme::double" in told.out


@pytest.mark.thorough
def test_defaults_of_the_function_and_one_dtype_need_not_be_given(command: Command, here: Path) -> None:
    (here / "mine.py").write_text(
        "import torch\ndef scaled(x, by: float = 2.0, minus: float = 0.5):\n    return x * by - minus\n"
        "def inputs():\n    return torch.randn(4, 5), 3.0\n"
    )
    given = ("--op", "acme::scaled", "--from", "reference", "--function", "mine.py", "--no-check")
    assert command("registry", "scaffold", *given).code == 0
    assert "acme::scaled(Tensor x, float by=3.0, float minus=0.5) -> Tensor y" in (here / "acme.py").read_text()
    told = command("registry", "scaffold", "--op", "square", "--dims", "n=100", "--out", "start.py", "--no-check")
    assert told.code == 0, told.err
    assert "'dtype': 'float32'" in (here / "start.py").read_text()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("def double(x):\n    return 3\ndef inputs():\n    return torch.ones(2),", "double returns int"),
        ("def double(x, y):\n    return x\ndef inputs():\n    return torch.ones(2),", "the function takes 2"),
        ("def double(*x):\n    return x\ndef inputs():\n    return torch.ones(2),", "double takes *x"),
        ("def double(x):\n    return x\ndef inputs():\n    raise OSError('gone')", "inputs(): OSError: gone"),
    ],
)
def test_a_function_that_is_no_op_is_told(command: Command, here: Path, body: str, message: str) -> None:
    (here / "mine.py").write_text(f"import torch\n{body}\n")
    told = command("registry", "scaffold", *REFERENCE, "--no-check")
    assert told.code == 2
    assert message in told.err
    assert not (here / "acme.py").exists()


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["--op", "acme::double", "--from", "reference"], "needs --function", "and inputs()"),
        (["--op", "acme::double", "--from", "reference", "--function", "no.py"], "no such file", "a Python file"),
        ([*REFERENCE, "--out", "other.py"], "is called acme.py", ""),
        (["--op", "sofmax"], "unknown op 'sofmax'", "did you mean softmax?"),
        (["--op", "softmax", "--dims", "rows"], "'rows' is not DIM=VALUE", "cols, dtype, rows"),
        (["--op", "softmax", "--out", "a-b.py"], "a-b is no identifier", ""),
        (
            ["--op", "softmax", "--from", "cuda"],
            "Invalid value for '--from': 'cuda' is not",
            "registry scaffold --help",
        ),
    ],
)
def test_it_refuses(command: Command, here: Path, arguments: list[str], message: str, hint: str) -> None:
    told = command("registry", "scaffold", *arguments)
    first, _, rest = told.err.partition("\n")
    assert (told.code, told.out) == (2, "")
    assert message in first
    assert hint in rest
    assert [path.name for path in here.iterdir() if path.suffix == ".py"] == ["mine.py"]
