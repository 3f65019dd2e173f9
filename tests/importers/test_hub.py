"""HF kernels from the hub: real downloads by ``huggingface_hub``, from a server on loopback that behaves as the hub."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from registry.cli import app
from registry.cli.main import new_registry_app
from registry.discovery.catalog import Catalog
from registry.errors import InvalidDefinitionError, PluginError, UnsupportedError
from registry.importers.hf_kernels import package_of, variants
from registry.importers.plugin_file import entrants, plugin_text

from .hub_server import HubServer, commit_of

pytest.importorskip("huggingface_hub")

FIRST, SECOND = commit_of(1), commit_of(2)
NAME = "someone/doubling"
DOUBLE = b"def square(x):\n    return x * x\n"
OTHER = b"def square(x):\n    return x.pow(2)\n"
UNIVERSAL = "build/torch-universal/doubling"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    server = HubServer()
    server.files[f"kernels/{NAME}"] = {
        FIRST: {f"{UNIVERSAL}/__init__.py": DOUBLE, "build/torch29-cxx11-rocm63-x86_64-linux/big.so": b"0" * 1000},
        SECOND: {f"{UNIVERSAL}/__init__.py": OTHER},
    }
    server.refs[f"kernels/{NAME}"] = {"v1": FIRST}
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    yield server
    server.stop()


def test_a_pinned_commit_is_downloaded_and_only_what_this_machine_runs(hub: HubServer) -> None:
    package = package_of(f"{NAME}@{FIRST}:square")
    assert package.load()(torch.full((2,), 3.0)).tolist() == [9.0, 9.0]
    assert package_of(f"{NAME}@{SECOND}:square").digest() != package.digest()
    assert not any("big.so" in path for path in hub.asked)
    assert any(path.endswith("doubling/__init__.py") for path in hub.asked)


def test_a_repository_of_models_holds_kernels_too(hub: HubServer) -> None:
    hub.files[f"models/{NAME}"] = hub.files.pop(f"kernels/{NAME}")
    assert package_of(f"{NAME}@{FIRST}:square").load()(torch.ones(1)).tolist() == [1.0]


def test_a_tag_is_refused_with_the_commit_that_it_is_now(hub: HubServer) -> None:
    for commit in (FIRST, SECOND):
        hub.refs[f"kernels/{NAME}"]["v1"] = commit  # a tag that moves
        with pytest.raises(InvalidDefinitionError, match="the revision 'v1' is no commit") as fault:
            package_of(f"{NAME}@v1:square")
        assert f"now it is {NAME}@{commit}" in fault.value.hint
    with pytest.raises(InvalidDefinitionError, match="no commit") as fault:
        package_of(f"{NAME}:square")
    assert "pin the 40 hexadecimal digits" in fault.value.hint


def test_a_missing_revision_repository_or_permission_is_told(hub: HubServer) -> None:
    with pytest.raises(UnsupportedError, match=f"cannot be downloaded from {hub.url}: it has no such commit"):
        package_of(f"{NAME}@{commit_of(3)}:square")
    with pytest.raises(UnsupportedError, match="there is none of that name"):
        package_of(f"someone/absent@{FIRST}:square")
    hub.gated.add(f"kernels/{NAME}")
    with pytest.raises(UnsupportedError, match="it asks who downloads it"):
        package_of(f"{NAME}@{FIRST}:square")
    with pytest.raises(InvalidDefinitionError, match="no folder, and no repository"):
        package_of(f"../{NAME}@{FIRST}:square")


def test_a_package_without_a_build_for_this_machine_tells_the_builds(hub: HubServer) -> None:
    hub.files[f"kernels/{NAME}"][FIRST] = {"build/torch29-cxx11-rocm63-x86_64-linux/big.so": b"0", "README.md": b""}
    with pytest.raises(UnsupportedError, match=r"no build .*\(builds: torch29-cxx11-rocm63-x86_64-linux\)") as fault:
        package_of(f"{NAME}@{FIRST}:square")
    assert variants()[0] in fault.value.hint


def test_without_a_network_the_cache_answers_and_else_an_error(hub: HubServer) -> None:
    package_of(f"{NAME}@{FIRST}:square")
    hub.stop()
    assert package_of(f"{NAME}@{FIRST}:square").load()(torch.ones(1)).tolist() == [1.0]
    with pytest.raises(UnsupportedError, match="it cannot be reached, and the files are not in the cache") as fault:
        package_of(f"{NAME}@{SECOND}:square")
    assert "FOLDER:function" in fault.value.hint
    with pytest.raises(InvalidDefinitionError, match="is no commit") as tag:
        package_of(f"{NAME}@v1:square")
    assert "now it is" not in tag.value.hint


def test_who_answers_with_another_commit_is_not_believed(hub: HubServer) -> None:
    # a branch with the name of a commit
    hub.refs[f"kernels/{NAME}"][FIRST] = SECOND
    with pytest.raises(UnsupportedError, match=f"it answers with commit {SECOND}"):
        package_of(f"{NAME}@{FIRST}:square")


def test_files_that_differ_from_those_that_were_imported_are_refused(hub: HubServer, tmp_path: Path) -> None:
    (found,), refused = entrants([f"{NAME}@{FIRST}:square"], "square", None)
    assert refused == {}
    plugin = tmp_path / "plugin.py"
    plugin.write_text(plugin_text("square", None, [found]))
    Catalog().load_file(plugin)
    plugin.write_text(plugin.read_text().replace(found.sha256, "0" * 64))
    with pytest.raises(PluginError, match=r"has changed: its hash is .*000000000000"):
        Catalog().load_file(plugin)
    (cached,) = (tmp_path / "hub").rglob("__init__.py")
    cached.resolve().write_bytes(OTHER)
    plugin.write_text(plugin_text("square", None, [found]))
    with pytest.raises(PluginError, match="has changed"):
        Catalog().load_file(plugin)


@pytest.mark.thorough
def test_a_package_of_the_hub_races(
    hub: HubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], own_lock: None
) -> None:
    shapes = tmp_path / "shapes.yaml"
    shapes.write_text("square: [{n: 4096, dtype: float32}]\n")
    given = ["race", f"{NAME}@{FIRST}:square", f"{NAME}@v1:square", "--op", "square", "--shapes", str(shapes)]
    code = app.run(new_registry_app(), "registry", [*given, "--device", "cpu", "--budget", "2", "--json"])
    ours = {one["label"]: one for one in json.loads(capsys.readouterr().out) if one["is_submission"]}
    assert code == 1
    assert ours[f"{NAME}@{FIRST}:square"]["status"] == "ok"
    assert ours[f"{NAME}@v1:square"]["status"] == "refused"
    assert FIRST in ours[f"{NAME}@v1:square"]["reason"]
