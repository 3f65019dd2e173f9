"""A machine that cannot compile is no verdict about a candidate: nothing lasting is stored, and the run says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from registry.artifact import Variant
from registry.device import Device
from registry.discovery.catalog import Catalog
from registry.dispatch.plans.plan import Candidate, Draft
from registry.errors import CacheError
from registry.problem import Problem
from registry.tuner.events import Event, TrialDone
from registry.tuner.jobs import CompileJob
from registry.tuner.limits import Budget
from registry.tuner.options import TuneOptions
from registry.tuner.planning.problems import plan
from registry.tuner.run import tune
from registry.tuner.storing import LASTING
from registry.tuner.workers.compile_worker import compile_one
from tuning_db import Store

CPU = Device.of("cpu")
PROBLEM = Problem("softmax", {"rows": 7, "cols": 500, "dtype": "float32"})
NAME = "cpp.rows"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KERNEL_REGISTRY_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir(mode=0o700)
    return tmp_path / "cache"


def compiled(catalog: Catalog, source: str | None = None) -> str:
    """The status of compiling one variant, ``built`` for success."""
    (planned,) = plan([PROBLEM], catalog, CPU, [NAME])
    candidate = planned.defaults()[0]
    (variant,) = Draft.of(planned.op, Candidate(candidate.implementation, candidate.config), PROBLEM,
                          planned.arguments, CPU).variants()  # fmt: skip
    changed = Variant(variant.backend, variant.kernel, variant.spec, variant.source if source is None else source)
    answer = compile_one(catalog, CompileJob(1, "softmax", NAME, changed, CPU.target))
    return "built" if "built" in answer else str(answer["failed"]["status"])


def test_a_refused_cache_is_an_error_and_bad_code_a_compile_error(catalog: Catalog, cache: Path) -> None:
    cache.chmod(0o777)
    assert compiled(catalog) == "error"
    cache.chmod(0o700)
    assert compiled(catalog, "this is no C++") == "compile_error"
    assert "error" not in LASTING


@pytest.mark.thorough
def test_a_full_disk_is_an_error(
    catalog: Catalog, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = tmp_path / "full-disk-c++"  # a compiler whose output has no room, whatever it is asked for
    compiler.write_text(
        '#!/bin/sh\ncase "$*" in *unit.so*) exec c++ -x c++ unit.cpp -o /dev/full;; esac\nexec c++ "$@"\n'
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    assert compiled(catalog) == "error"
    monkeypatch.delenv("CXX")
    assert compiled(catalog) == "built"


def test_a_run_does_not_begin_where_nothing_can_be_compiled(catalog: Catalog, cache: Path, tmp_path: Path) -> None:
    cache.chmod(0o777)
    with pytest.raises(CacheError, match="can be written to by others"):
        tune([PROBLEM], catalog=catalog, device=CPU, database=str(tmp_path / "run.db"))
    assert not (tmp_path / "run.db").exists()


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_a_run_whose_cache_is_refused_on_the_way_ends_and_the_next_one_decides(
    catalog: Catalog, cache: Path, tmp_path: Path
) -> None:
    database = str(tmp_path / "run.db")

    def spoil(event: Event) -> None:
        if isinstance(event, TrialDone):
            cache.chmod(0o777)

    def run(observer: object) -> tuple[object, ...]:
        return tune([PROBLEM], catalog=catalog, device=CPU, database=database,
                    options=TuneOptions(Budget(trials=12), implementations=[NAME]), observer=observer)  # type: ignore[arg-type]  # fmt: skip

    with pytest.raises(CacheError, match="can be written to by others"):
        run(spoil)
    with Store.open(database) as store:
        assert not store.winners(op="softmax", hardware=CPU.hardware(), regime="cold")
        assert {trial.status for trial in store.trials(op="softmax")} <= {"ok", "error"}
    cache.chmod(0o700)
    (result,) = run(lambda _: None)
    assert getattr(result, "implementation") == NAME  # noqa: B009
    assert cache.stat().st_mode & 0o777 == 0o700
