"""``registry new``: what it tells, and what it refuses in a line and a hint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ..conftest import Command


def test_it_makes_a_package_and_tells_what_to_do_next(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    told = command("registry", "new", "plugin", "my_lab", "--op", "softmax", "--backend", "cpp")
    assert (told.code, told.err) == (0, "")
    assert "made registry-my-lab: 11 files" in told.out
    assert "pip install -e registry-my-lab\n  pytest registry-my-lab\n  registry check my_lab\n" in told.out
    assert (tmp_path / "registry-my-lab" / "registry_my_lab" / "kernels" / "softmax.cpp").is_file()


def test_it_tells_a_machine_which_files_it_made(command: Command, tmp_path: Path) -> None:
    told = json.loads(command("registry", "new", "op", "acme::thing", "--folder", tmp_path / "x", "--json").out)
    assert {"vendor": "acme", "op": "acme::thing", "folder": str(tmp_path / "x")}.items() <= told.items()
    assert sorted(told["files"]) == sorted(
        str(path.relative_to(tmp_path / "x")) for path in (tmp_path / "x").rglob("*") if path.is_file()
    )


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["plugin", "acme", "--op", "sofmax"], "unknown op 'sofmax'", "did you mean softmax?"),
        (["plugin", "acme", "--op", "softmax", "--backend", "trition"], "unknown backend 'trition'", "mean triton?"),
        (["plugin", "acme", "--op", "linear"], "no triton kernel of linear to begin with", "--backend torch"),
        (["plugin", "acme", "--op", "acme::thing"], "acme::thing is an op of acme itself", "registry new op acme::thi"),
        (["plugin", "acme-kernels", "--op", "softmax"], "'acme-kernels' is no identifier", "mean acme_kernels?"),
        (["plugin", "acme"], "--op", "see registry new plugin --help"),
        (["op", "thing"], "'thing' has no vendor", "acme::thing"),
        (["op", "torch::thing"], "'torch' is taken by plugin 'torch'", "choose another name"),
        (["op", "acme::thing", "--folder", "."], ". exists already", "nothing was written"),
        (["op", "acme::thing", "--folder", "no/such"], "no: no such folder", "make the folder first"),
    ],
)
def test_it_refuses(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str, hint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    told = command("registry", "new", *arguments)
    first, _, rest = told.err.partition("\n")
    assert (told.code, told.out) == (2, "")
    assert message in first
    assert hint in rest
    assert list(tmp_path.iterdir()) == []
