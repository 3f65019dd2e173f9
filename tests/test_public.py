"""The public face: what importing costs, which names there are, and that tune feeds call."""

from __future__ import annotations

import pkgutil
from pathlib import Path

import pytest
import torch

import registry

from . import fresh

HEAVY = ("triton", "sqlalchemy", "optuna", "alembic", "registry.tuner", "registry_torch", "registry_triton")


def loaded_after(code: str) -> set[str]:
    """Which heavy modules a fresh process has after running ``code``."""
    shown = f"import sys\n{code}\nprint(*[name for name in {HEAVY} if name in sys.modules])"
    done = fresh.run("-c", shown)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_importing_is_light() -> None:
    assert loaded_after("import registry; registry.op; registry.quantize") == set()


def test_calling_loads_no_tuner() -> None:
    code = "import torch, registry; registry.call('softmax', torch.ones(2, 2))"
    assert not loaded_after(code) & {"optuna", "registry.tuner"}


def test_every_public_name_is_there_and_no_module_bears_it() -> None:
    modules = {module.name for module in pkgutil.iter_modules(registry.__path__)}
    for name in registry.__all__:
        assert hasattr(registry, name), name
        assert name not in modules, name


def test_the_box_is_listed() -> None:
    assert {"softmax", "rms_norm", "vector_add", "square", "gelu", "gemm_int4"} <= registry.ops().keys()
    assert "torch.native" in {found.name for found in registry.implementations("softmax")}
    assert {"torch", "triton", "cuda", "cpp"} <= {plugin.name for plugin in registry.plugins()}
    with pytest.raises(registry.UnknownNameError, match="did you mean softmax"):
        registry.implementations("sofmax")


def test_tune_refuses_before_it_measures() -> None:
    with pytest.raises(registry.UnknownNameError, match="unknown op"):
        registry.tune("sofmax", [])
    with pytest.raises(registry.UnknownNameError, match="dimension"):
        registry.tune("softmax", [{"row": 1}])
    foreign = registry.Problem("square", {"n": 4, "dtype": "float32"})
    with pytest.raises(registry.InvalidArgumentError, match="another op"):
        registry.tune("softmax", [foreign])
    with pytest.raises(registry.ShapesFileError, match="no such file"):
        registry.tune("softmax", Path("nowhere.yaml"))


@pytest.mark.usefixtures("own_lock")
def test_what_was_tuned_is_called_at_once(tmp_path: Path) -> None:
    x = torch.randn(1234)
    registry.configure(database=tmp_path / "own.db")
    try:
        assert registry.explain("square", x).step == "default"
        dims: dict[str, int | float | str | bool] = {"n": 1234, "dtype": "float32"}
        (result,) = registry.tune("square", [dims], device="cpu", trials=1, budget=5, implementations=("torch.native",))
        told = registry.explain("square", x)
        assert (told.step, told.implementation) == ("exact", result.implementation)
        torch.testing.assert_close(registry.call("square", x), x * x)
    finally:
        registry.configure(database=None)
