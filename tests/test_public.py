"""The public face: what importing costs, which names there are, and that tune feeds call."""

from __future__ import annotations

import pkgutil
from pathlib import Path
from typing import Any

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


def test_tune_tells_of_an_op_that_nobody_implements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry.api.dispatcher.catalog, "implementations", lambda op: ())
    with pytest.raises(
        registry.UnsupportedError, match=r"tune: nobody implements softmax \(.*: give an Implementation to"
    ):
        registry.tune("softmax", [DIMS], device="cpu")


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
    for devices in ("cuda:99", "cpu,cuda:99", ["cpu", "cuda:99"], []):
        with pytest.raises(registry.DeviceError):
            registry.tune("softmax", [DIMS], device=devices)


@pytest.mark.usefixtures("own_lock", "few_blocks")
def test_what_was_tuned_is_called_at_once(tmp_path: Path) -> None:
    x = torch.randn(1234)
    registry.configure(database=tmp_path / "own.db")
    try:
        assert registry.explain("square", x).step == "default"
        dims: dict[str, int | float | str | bool] = {"n": 1234, "dtype": "float32"}
        names = ("torch.native",)
        assert registry.tune("square", [dims], device="cpu", time_limit=1e-6, implementations=names) == ()
        reason = r"tune: square\(n=35184372088832, dtype=float32\) skipped: needs \d+ GiB"
        with pytest.warns(RuntimeWarning, match=reason) as warned:
            (result,) = registry.tune(
                "square", [{**dims, "n": 1 << 45}, dims], device="cpu", trials=1, budget=5, implementations=names
            )
        assert {warning.filename for warning in warned} == {__file__}
        told = registry.explain("square", x)
        assert (told.step, told.implementation) == ("exact", result.implementation)
        torch.testing.assert_close(registry.call("square", x), x * x)
    finally:
        registry.configure(database=None)


DIMS = {"rows": 2, "cols": 8, "dtype": "float32"}


@pytest.mark.parametrize("database", [3, b"x", ["a"], 1.5])
def test_a_database_that_is_no_place_is_refused_at_once(database: object) -> None:
    before = registry.api.dispatcher.database
    with pytest.raises(registry.InvalidArgumentError, match=r"configure\(database=.*\n  expected a file or an SQLA"):
        registry.configure(database=database, mode="strict")  # type: ignore[arg-type]
    assert (registry.api.dispatcher.database, registry.api.dispatcher.mode()) == (before, "tuned")
    with pytest.raises(registry.InvalidArgumentError, match=r"tune\(database="):
        registry.tune("softmax", [DIMS], database=database)  # type: ignore[arg-type]


@pytest.mark.parametrize("problems", [None, 3, "abc", DIMS], ids=["None", "a number", "text", "one mapping"])
def test_problems_that_are_no_list_are_refused_before_anything_runs(problems: Any) -> None:
    with pytest.raises(registry.RegistryError, match=r"warmup\('softmax'\): got .*\n  expected a list of mappings"):
        registry.warmup({"softmax": problems})
    with pytest.raises(registry.RegistryError, match=r"tune\('softmax'\): got|no such file"):
        registry.tune("softmax", problems)


def test_other_things_of_the_wrong_type_are_refused(tmp_path: Path) -> None:
    wrong: list[tuple[str, Any]] = [
        (r"record\(None\)\n  expected a file", lambda: registry.record(None).__enter__()),  # type: ignore[arg-type]
        (r"record\(3\)", lambda: registry.record(3).__enter__()),  # type: ignore[arg-type]
        (r"tune\(budget='x'\)", lambda: registry.tune("softmax", [DIMS], budget="x")),  # type: ignore[arg-type]
        (r"tune\(time_limit='x'\)", lambda: registry.tune("softmax", [DIMS], time_limit="x")),  # type: ignore[arg-type]
        (r"time limit: 0 seconds", lambda: registry.tune("softmax", [DIMS], time_limit=0)),
        (r"tune\(trials=-1\)", lambda: registry.tune("softmax", [DIMS], trials=-1)),
        (r"3 is no name", lambda: registry.tune("softmax", [DIMS], implementations=[3])),  # type: ignore[list-item]
        (r"must be a str, got \['a'\]", lambda: registry.implementations(["a"])),  # type: ignore[arg-type]
    ]
    for message, call in wrong:
        with pytest.raises(registry.InvalidArgumentError, match=message):
            call()
