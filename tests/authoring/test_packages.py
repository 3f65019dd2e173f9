"""Packages that `registry new` makes: their files, their names, and nothing that was there is touched."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import registry
from registry.authoring.packages import new_op, new_plugin
from registry.authoring.starts import BACKENDS, STARTS, start_of
from registry.discovery.catalog import Catalog
from registry.errors import InvalidDefinitionError, RegistryError, UnknownNameError
from registry.tuner.shapes.shapes import read_shapes

ROOT = Path(__file__).parents[2]
LONGEST = "a" * 24


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return Catalog()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, catalog: Catalog) -> Path:
    """A folder with a package of every op and backend, and with names as long as they may be."""
    folder = tmp_path_factory.mktemp("made")
    for op in STARTS:
        for backend in BACKENDS:
            new_plugin(f"{op}_by_{backend}", catalog.op(op), backend, folder / f"{op}-{backend}")
    for backend in BACKENDS:
        new_plugin(LONGEST, catalog.op("rms_norm"), backend, folder / f"long-{backend}")
    new_plugin("others", catalog.op("gemm_int4"), "torch", folder / "others")
    new_op("acme::thing", folder / "thing")
    new_op(f"{LONGEST}::{LONGEST}", folder / "long-op")
    return folder


@pytest.mark.thorough
def test_ruff_has_nothing_to_say(made: Path) -> None:
    for words in (["check"], ["format", "--check"]):
        command = [sys.executable, "-m", "ruff", *words, "--no-cache", str(made)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


@pytest.mark.thorough
def test_mypy_has_nothing_to_say(made: Path, tmp_path: Path) -> None:
    """With this repository's settings, which are as strict, and with its cache: torch alone takes 18 s to check."""
    packages = {path.parent.name: path.parents[1] for path in sorted(made.glob("*/registry_*/__init__.py"))}
    text = (ROOT / "pyproject.toml").read_text()
    kernels = [f'"{name}.kernels.*"' for name, folder in packages.items() if "triton" in folder.name]
    untyped = '["registry_triton.kernels.*",'
    assert untyped in text
    settings = tmp_path / "pyproject.toml"
    settings.write_text(text.replace(untyped, f"{untyped} {', '.join(kernels)},"))
    names = [part for name in packages for part in ("-p", name)]
    path = os.pathsep.join(["plugins", *map(str, packages.values())])
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", str(settings), "--cache-dir", ".mypy_cache", *names],
        cwd=ROOT, env={**os.environ, "MYPYPATH": path, "PYTHONPATH": ""}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_package_names_its_plugin_and_has_problems_of_its_op(made: Path, catalog: Catalog) -> None:
    assert len(list(made.iterdir())) == len(STARTS) * len(BACKENDS) + len(BACKENDS) + 3
    for folder in made.iterdir():
        told = tomllib.loads((folder / "pyproject.toml").read_text())
        ((vendor, package),) = told["project"]["entry-points"]["kernel_registry"].items()
        assert package == f"registry_{vendor}"
        assert (folder / package / "py.typed").is_file()
        assert not [
            path for path in folder.rglob("*") if path.is_file() and "{{" in path.read_text().replace("${{", "")
        ]
        if "::" not in (folder / "shapes.yaml").read_text():
            assert read_shapes(folder / "shapes.yaml", catalog).all


def test_the_templates_are_in_the_wheel() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "registry" in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    ignored = subprocess.run(
        ["git", "check-ignore", "registry/authoring/templates/package/gitignore.jinja"], cwd=ROOT, check=False
    )
    assert ignored.returncode == 1


def test_an_existing_folder_is_not_touched(tmp_path: Path, catalog: Catalog) -> None:
    there = tmp_path / "there"
    there.mkdir()
    (there / "README.md").write_text("mine")
    for make in (
        lambda: new_plugin("acme", catalog.op("softmax"), "torch", there),
        lambda: new_op("acme::thing", there),
        lambda: new_op("acme::thing", there / "README.md"),
    ):
        with pytest.raises(RegistryError, match="exists already"):
            make()
    assert [path.name for path in there.iterdir()] == ["README.md"]
    assert (there / "README.md").read_text() == "mine"


def test_a_folder_that_cannot_be_finished_is_taken_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = Path.write_text

    def write_text(path: Path, text: str, encoding: str) -> int:
        if path.name == "shapes.yaml":
            raise OSError(28, os.strerror(28), str(path))
        return written(path, text, encoding)

    monkeypatch.setattr(Path, "write_text", write_text)
    with pytest.raises(OSError, match="No space left"):
        new_op("acme::thing", tmp_path / "full")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("vendor", "message"),
    [
        ("my-lab", "'my-lab' is no identifier\n.*did you mean my_lab"),
        ("2fast", "is no identifier"),
        ("Acme", "did you mean acme"),
        ("", "is no identifier"),
        ("acmé", "is no identifier"),
        ("acme\n", "is no identifier"),
        ("../acme", "is no identifier"),
        ("class", "is a word of Python"),
        ("match", "is a word of Python"),
        ("registry", "begins with registry"),
        ("registry_acme", "begins with registry"),
        ("torch", "is taken by plugin 'torch'"),
        ("a" * 25, "has 25 characters"),
    ],
)
def test_a_name_that_no_plugin_may_have_is_refused(
    vendor: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, catalog: Catalog
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidDefinitionError, match=f"(?s){message}"):
        new_plugin(vendor, catalog.op("softmax"), "torch")
    with pytest.raises(InvalidDefinitionError):
        new_op(f"{vendor}::thing")
    assert list(tmp_path.iterdir()) == []


def test_an_import_package_that_is_there_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "registry_held.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InvalidDefinitionError, match="registry_held is there already"):
        new_op("held::thing", tmp_path / "new")


@pytest.mark.parametrize(("name", "message"), [("thing", "has no vendor"), ("acme::", "'' is no identifier")])
def test_the_name_of_an_op_needs_its_vendor(name: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidDefinitionError, match=message):
        new_op(name, tmp_path / "new")


def test_a_backend_that_is_unknown_or_has_no_kernel_to_begin_with_is_refused(catalog: Catalog) -> None:
    with pytest.raises(UnknownNameError, match="did you mean triton"):
        start_of(catalog.op("softmax"), "trition")
    with pytest.raises(RegistryError, match=r"(?s)no cuda kernel of linear.*--backend torch"):
        start_of(catalog.op("linear"), "cuda")
    assert start_of(catalog.op("linear"), "torch").shapes


def test_the_package_asks_for_this_version(made: Path) -> None:
    told = tomllib.loads((made / "thing" / "pyproject.toml").read_text())
    assert told["project"]["dependencies"] == [f"kernel-registry >= {registry.__version__.rpartition('.')[0]}"]
