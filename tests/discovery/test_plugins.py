"""Plugins are found, guarded, reported, allowed and blocked."""

from __future__ import annotations

import importlib
import os
import sys
import threading
import warnings
from importlib import metadata
from typing import Any

import pytest

from registry.discovery.catalog import Catalog
from registry.discovery.plugin import PluginReport, PluginWarning
from registry.errors import PluginError, UnknownNameError

from .. import fresh

GOOD = """
@implements("softmax")
def anything():
    return [Made("softmax", "good.one"), Made("softmax", "good.two")]
"""


def _catalog(site: Any, **environ: str) -> Catalog:
    return Catalog(site.entry_points, environ)


def _report(catalog: Catalog, name: str) -> PluginReport:
    (report,) = [report for report in catalog.plugins() if report.name == name]
    return report


def _names(catalog: Catalog, op: str) -> list[str]:
    return [implementation.name for implementation in catalog.implementations(op)]


def _faulty(site: Any, name: str) -> tuple[Catalog, PluginReport]:
    """The catalog and the report of a plugin with exactly one warning, which names all that matters."""
    catalog = _catalog(site)
    with pytest.warns(PluginWarning) as said:
        report = _report(catalog, name)
    (warning,) = said
    assert report.fault in str(warning.message)
    assert f"plugin {name!r} ({report.distribution} {report.version}): " in str(warning.message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        catalog.plugins()
    return catalog, report


def test_the_ops_in_the_box_come_through_the_same_hook() -> None:
    catalog = Catalog([], {})
    report = _report(catalog, "registry.contracts")
    assert report.ops == tuple(catalog.ops())
    assert {"vector_add", "square", "gelu", "softmax", "rms_norm", "gemm_int4"} <= set(report.ops)
    assert report.fault == ""


def test_the_installed_plugins_of_the_box_are_found_through_their_entry_points(catalog: Catalog) -> None:
    reports = {report.name: report for report in catalog.plugins()}
    box = {"torch", "triton", "cuda", "cpp", "humming", "quack", "liger", "flashinfer", "flash_attn", "cublaslt"}
    assert box <= reports.keys()
    assert "softmax/torch.native" in reports["torch"].implementations
    assert reports["torch"].distribution == "kernel-registry"
    assert [report.fault for report in reports.values() if report.distribution == "kernel-registry"] == [""] * 11


def test_a_good_plugin_is_reported_in_full(site: Any) -> None:
    site.add("acme-kernels", {"good": "good_plugin"}, version="2.5", good_plugin=GOOD)
    report = _report(_catalog(site), "good")
    assert (report.distribution, report.version, report.api_version) == ("acme-kernels", "2.5", 1)
    assert report.implementations == ("softmax/good.one", "softmax/good.two")
    assert report.load_ms > 0
    assert (report.fault, report.blocked, report.inactive, report.ops) == ("", False, (), ())


def test_a_plugin_that_cannot_be_imported_leaves_the_others_alone(site: Any) -> None:
    site.add("acme", {"good": "good_plugin", "bad": "bad_plugin"}, good_plugin=GOOD, bad_plugin="import nowhere_at_all")
    catalog, report = _faulty(site, "bad")
    assert "No module named 'nowhere_at_all'" in report.fault
    assert "bad_plugin.py" in report.fault
    assert _names(catalog, "softmax") == ["good.one", "good.two"]


def test_a_plugin_that_exits_or_is_no_python_or_is_missing_is_a_fault(site: Any) -> None:
    entry_points = {"exits": "exits_plugin", "garbled": "garbled_plugin", "missing": "missing_plugin"}
    site.add("acme", entry_points, exits_plugin="raise SystemExit(3)", garbled_plugin="def (")
    catalog = _catalog(site)
    with pytest.warns(PluginWarning) as said:
        faults = {report.name: report.fault for report in catalog.plugins()}
    assert len(said) == 3
    assert faults["exits"].startswith("SystemExit: 3")
    assert faults["garbled"].startswith("SyntaxError")
    assert "missing_plugin" in faults["missing"]


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("2", "written for version 2 .* upgrade kernel-registry"),
        ("0", "written for version 0 .* upgrade the plugin"),
        ("None", "write KERNEL_REGISTRY_API = 1"),
        ("'1'", "expected the integer 1"),
    ],
)
def test_a_plugin_of_another_contract_version_is_not_used(site: Any, version: str, expected: str) -> None:
    site.add("acme", {"other": "other_plugin"}, other_plugin=f"{GOOD}\nKERNEL_REGISTRY_API = {version}")
    catalog = _catalog(site)
    with pytest.warns(PluginWarning, match=expected):
        assert _names(catalog, "softmax") == []


def test_a_hook_with_arguments_takes_its_plugin_out(site: Any) -> None:
    site.add("acme", {"bad": "bad_plugin"}, bad_plugin=f"{GOOD}\n@implements('square')\ndef two(problem): return []")
    catalog, report = _faulty(site, "bad")
    assert "its hook square takes (problem)" in report.fault
    assert _names(catalog, "softmax") == []


def test_a_second_entry_point_of_the_same_name_is_reported(site: Any) -> None:
    site.add("acme", {"good": "good_plugin"}, good_plugin=GOOD)
    site.add("zeta", {"good": "zeta_plugin"}, zeta_plugin=GOOD.replace("good.", "zeta."))
    catalog = _catalog(site)
    with pytest.warns(
        PluginWarning, match=r"'good' \(zeta 1.0\): the name 'good' is taken by plugin 'good' \(acme 1.0\)"
    ):
        assert _names(catalog, "softmax") == ["good.one", "good.two"]
    assert [report.distribution for report in catalog.plugins()] == ["kernel-registry", "acme", "zeta"]


def test_a_stranger_cannot_take_the_place_of_a_plugin_in_the_box(site: Any) -> None:
    site.add("aaa", {"torch": "stranger_plugin"}, stranger_plugin=GOOD)
    catalog = Catalog([*site.entry_points, *metadata.entry_points(group="kernel_registry", name="torch")], {})
    with pytest.warns(PluginWarning, match=r"'torch' \(aaa 1.0\): the name 'torch' is taken by .*kernel-registry"):
        assert "torch.native" in _names(catalog, "softmax")


def test_one_module_under_two_names_is_a_fault_of_the_second(site: Any) -> None:
    site.add("acme", {"first": "good_plugin", "second": "good_plugin"}, good_plugin=GOOD)
    catalog, report = _faulty(site, "second")
    assert "already registered" in report.fault
    assert _names(catalog, "softmax") == ["good.one", "good.two"]


def test_a_raising_hook_takes_only_itself_out(site: Any) -> None:
    source = f"""
@implements("square")
def breaks():
    raise ZeroDivisionError("oh")
{GOOD}"""
    site.add("acme", {"good": "half_plugin"}, half_plugin=source)
    site.add("zeta", {"fine": "fine_plugin"}, fine_plugin=GOOD.replace("softmax", "square").replace("good", "fine"))
    catalog, report = _faulty(site, "good")
    assert "its implementations of square: ZeroDivisionError: oh" in report.fault
    assert "half_plugin.py:" in report.fault
    assert _names(catalog, "softmax") == ["good.one", "good.two"]
    assert _names(catalog, "square") == ["fine.one", "fine.two"]


@pytest.mark.parametrize(
    ("offered", "expected"),
    [
        ("Made", "is a class, expected an instance"),
        ("42", "42 is no Implementation"),
        ("Made('square', 'good.three')", "Made.op is 'square'"),
        ("Made('softmax', 'three')", "Made.name is 'three', expected plugin.variant"),
        ("Made('softmax', 'good.one')", "the name 'good.one' is taken"),
        (
            "type('Wants', (Made,), {'preloads': 'numba'})('softmax', 'good.three')",
            r"Wants.preloads is a text, expected a tuple, \('numba',\)",
        ),
        ("Made('softmax', 'registry.contracts')", None),
    ],
)
def test_what_a_hook_offers_is_checked_one_by_one(site: Any, offered: str, expected: str | None) -> None:
    site.add(
        "acme", {"good": "mixed_plugin"}, mixed_plugin=GOOD.replace("good.two", "good.2").replace("]", f", {offered}]")
    )
    catalog = _catalog(site)
    if expected is None:
        assert len(catalog.implementations("softmax")) == 3
        return
    with pytest.warns(PluginWarning, match=expected):
        assert _names(catalog, "softmax") == ["good.one", "good.2"]


def test_a_hook_that_returns_no_list_is_a_fault(site: Any) -> None:
    site.add("acme", {"none": "none_plugin"}, none_plugin="@implements('softmax')\ndef nothing(): pass")
    _, report = _faulty(site, "none")
    line = (site.folder / "none_plugin.py").read_text().splitlines().index("@implements('softmax')") + 1
    place = f"site/none_plugin.py:{line}"
    assert report.fault == f"its implementations of softmax: the hook returned None, expected a list ({place})"


PLACES = {
    "schema": (
        "from registry.contracts import SQUARE\nimport dataclasses\ndataclasses.replace(SQUARE, schema='(')",
        "'('",
    ),
    "space": ("from registry import Space\nSPACE = Space(T=[(1, 2)])", "SPACE ="),
    "name": ("class Odd(Made): pass\n@implements('softmax')\ndef f(): return [Odd('softmax', 'odd')]", "class Odd"),
    "hook": ("@implements('softmax')\ndef f(): return [42]", "@implements"),
    "in a hook": ("@implements('softmax')\ndef f():\n    registry.implements(7)", "registry.implements(7)"),
    "arguments": ("@implements('softmax')\ndef f(device): return []", "@implements"),
    "misspelt": ("@implements('sofmax')\ndef f(): return []", "@implements"),
    "op": ("@defines\ndef f(): return ['acme::row_sum']", "@defines"),
}


@pytest.mark.parametrize(("source", "place"), PLACES.values(), ids=PLACES)
def test_a_fault_is_told_with_the_line_of_the_plugin(site: Any, source: str, place: str) -> None:
    site.add("acme", {"good": "placed_plugin"}, placed_plugin=f"import registry\n{source}")
    _, report = _faulty(site, "good")
    lines = (site.folder / "placed_plugin.py").read_text().splitlines()
    (line,) = [number for number, held in enumerate(lines, 1) if place in held]
    assert f"placed_plugin.py:{line})" in report.fault
    assert report.fault.count(".py:") == 1


def test_one_implementation_needs_no_list(site: Any) -> None:
    site.add(
        "acme", {"lone": "lone_plugin"}, lone_plugin="@implements('square')\ndef f(): return Made('square', 'lone.x')"
    )
    assert _names(_catalog(site), "square") == ["lone.x"]


def test_nobody_may_use_another_plugins_name(site: Any) -> None:
    site.add("acme", {"good": "good_plugin"}, good_plugin=GOOD)
    site.add("zeta", {"zeta": "zeta_plugin"}, zeta_plugin=GOOD.replace("good.one", "good.mine"))
    catalog = _catalog(site)
    with pytest.warns(PluginWarning) as said:
        assert _names(catalog, "softmax") == ["good.one", "good.two"]
    assert "'good.mine' bears the name of another plugin, 'good'" in str(said[0].message)
    assert "'good'; begin it with a name of your own, e.g. 'own.mine' (site/zeta_plugin.py:" in str(said[0].message)
    assert "the name 'good.two' is taken by <Made good.two of softmax>" in str(said[1].message)


def test_implementing_an_op_that_nobody_defines_is_inactive_and_no_fault(site: Any) -> None:
    site.add("acme", {"good": "far_plugin"}, far_plugin=GOOD.replace('"softmax")', '"flash::attention")', 1))
    report = _report(_catalog(site), "good")
    assert report.inactive == ("flash::attention",)
    assert report.fault == ""


def test_a_misspelt_hook_is_inactive_and_said(site: Any) -> None:
    site.add("acme", {"good": "typo_plugin"}, typo_plugin=GOOD.replace('"softmax")', '"sofmax")', 1))
    _, report = _faulty(site, "good")
    assert report.inactive == ("sofmax",)
    assert "'sofmax', which nobody defines; did you mean 'softmax'?" in report.fault


def test_ops_are_collected_before_implementations_whatever_the_order(site: Any, row_sum: str) -> None:
    user = "@implements('zeta::row_sum')\ndef f(): return [Made('zeta::row_sum', 'user.loop')]"
    site.add("acme", {"a_user": "user_plugin"}, user_plugin=user)
    site.add(
        "zeta", {"zeta": "zeta_plugin"}, zeta_plugin=f"{row_sum}\n@defines\ndef f(): return [row_sum('zeta::row_sum')]"
    )
    catalog = _catalog(site)
    assert catalog.op("zeta::row_sum").version == 1
    assert _names(catalog, "zeta::row_sum") == ["user.loop"]
    assert _report(catalog, "zeta").ops == ("zeta::row_sum",)


@pytest.mark.parametrize(
    ("ops", "expected"),
    [
        ("[row_sum('row_sum')]", "bare names belong to the ops in the box .*; name it vendor::row_sum"),
        (
            "[row_sum('softmax')]",
            r"op 'softmax': its name is taken by plugin .registry.contracts. .kernel-reg",
        ),
        ("[row_sum('kernel_registry_ops')]", "its name is taken by the plugin contract"),
        ("[row_sum('zeta::row_sum')]", "the ops of this plugin are named after it .*; name it .* or good::row_sum"),
        (
            "[row_sum('good::a'), row_sum('good::a')]",
            r"'good::a': its name is taken by plugin 'good' \(acme 1.0\) .*; define each",
        ),
        ("['acme::row_sum']", "'acme::row_sum' is defined as an op .*; expected one registry.Op"),
        ("[row_sum('Acme::RowSum')]", "InvalidDefinitionError|op name 'Acme::RowSum'"),
        ("1 / 0", "its ops: ZeroDivisionError"),
    ],
)
def test_a_bad_op_is_refused_and_the_rest_stays(site: Any, row_sum: str, ops: str, expected: str) -> None:
    site.add("acme", {"good": "bad_ops_plugin"}, bad_ops_plugin=f"{GOOD}{row_sum}\n@defines\ndef f(): return {ops}")
    catalog = _catalog(site)
    with pytest.warns(PluginWarning, match=expected):
        assert _names(catalog, "softmax") == ["good.one", "good.two"]


DEFINING = "@defines\ndef f(): return [row_sum({!r})]"


def test_an_op_of_another_plugins_vendor_is_refused_and_the_holder_named(site: Any, row_sum: str) -> None:
    site.add("zeta-kernels", {"zeta": "registry_zeta"}, registry_zeta=row_sum + DEFINING.format("zeta::row_sum"))
    site.add("acme", {"acme": "acme_plugin"}, acme_plugin=row_sum + DEFINING.format("zeta::other"))
    catalog = _catalog(site)
    with pytest.warns(
        PluginWarning, match=r"op 'zeta::other': ops of zeta:: belong to plugin 'zeta' \(zeta-kernels 1.0\)"
    ):
        assert "zeta::row_sum" in catalog.ops()
    assert "zeta::other" not in catalog.ops()


def test_a_vendor_is_also_what_follows_registry_in_the_name_of_the_package(site: Any, row_sum: str) -> None:
    source = row_sum + "@defines\ndef f(): return [row_sum('acme::one'), row_sum('fast_kernels::two')]"
    site.add("acme", {"Fast-Kernels": "registry_acme"}, registry_acme=source)
    assert _report(_catalog(site), "Fast-Kernels").ops == ("acme::one", "fast_kernels::two")


def test_the_allow_list_and_the_block_list_act_before_import(site: Any) -> None:
    site.add("acme", {"good": "good_plugin", "bad": "bad_plugin"}, good_plugin=GOOD, bad_plugin="import nowhere_at_all")
    for environ in ({"KERNEL_REGISTRY_PLUGINS": "good"}, {"KERNEL_REGISTRY_BLOCK": " bad ,"}):
        catalog = _catalog(site, **environ)
        assert _report(catalog, "bad").blocked
        assert _report(catalog, "bad").fault == ""
        assert _names(catalog, "softmax") == ["good.one", "good.two"]
    assert "bad_plugin" not in sys.modules


def test_a_name_on_a_list_that_no_plugin_has_is_said(site: Any) -> None:
    site.add("acme", {"good": "good_plugin"}, good_plugin=GOOD)
    with pytest.warns(PluginWarning, match=r"KERNEL_REGISTRY_BLOCK .*'goood'(.|\n)*did you mean good"):
        assert _names(_catalog(site, KERNEL_REGISTRY_BLOCK="goood"), "softmax") == ["good.one", "good.two"]


def test_strict_mode_makes_every_fault_an_error_every_time(site: Any) -> None:
    broken = "@implements('square')\ndef f(): return 1 / 0"
    site.add("acme", {"good": "good_plugin", "late": "late_plugin"}, good_plugin=GOOD, late_plugin=broken)
    catalog = _catalog(site, KERNEL_REGISTRY_STRICT="1")
    assert _names(catalog, "softmax") == ["good.one", "good.two"]
    for _ in range(2):
        with pytest.raises(PluginError, match=r"'late' \(acme 1.0\): .*ZeroDivisionError"):
            catalog.implementations("square")
    site.add("zeta", {"bad": "bad_plugin"}, bad_plugin="import nowhere_at_all")
    catalog = _catalog(site, KERNEL_REGISTRY_STRICT="1")
    for _ in range(2):
        with pytest.raises(PluginError, match="nowhere_at_all"):
            catalog.ops()


def test_a_hook_runs_once_and_only_when_its_op_is_first_used(site: Any) -> None:
    source = """
calls = []
@implements("square")
def f():
    calls.append(1)
    return [Made("square", "lazy.x")]
"""
    site.add("acme", {"lazy": "lazy_plugin"}, lazy_plugin=source)
    catalog = _catalog(site)
    catalog.implementations("softmax")
    assert sys.modules["lazy_plugin"].calls == []
    seen: list[list[str]] = []
    threads = [threading.Thread(target=lambda: seen.append(_names(catalog, "square"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [["lazy.x"]] * 8
    assert sys.modules["lazy_plugin"].calls == [1]


def test_a_hook_that_uses_the_catalog_is_a_fault_and_no_deadlock(site: Any) -> None:
    site.add(
        "acme", {"loop": "loop_plugin"}, loop_plugin="@implements('square')\ndef f(): return catalog.ops()['square']"
    )
    site.add("zeta", {"deep": "deep_plugin"}, deep_plugin="@defines\ndef f(): return catalog.ops()")
    catalog = _catalog(site)
    for name in ("loop_plugin", "deep_plugin"):
        vars(importlib.import_module(name))["catalog"] = catalog
    with pytest.warns(PluginWarning) as said:
        catalog.plugins()
    assert "the catalog was used while a plugin's hook was running" in str(said[0].message)
    assert "is no Implementation" in str(said[1].message)


def test_an_unknown_name_comes_with_the_nearest(site: Any) -> None:
    site.add("acme", {"good": "good_plugin"}, good_plugin=GOOD)
    catalog = _catalog(site)
    with pytest.raises(UnknownNameError, match=r"unknown op 'sofmax'\n.*did you mean softmax"):
        catalog.op("sofmax")
    with pytest.raises(UnknownNameError, match="unknown op"):
        catalog.implementations("sofmax")
    with pytest.raises(UnknownNameError, match=r"implementation of softmax 'good.on'\n.*good.one"):
        catalog.implementation("softmax", "good.on")


def test_a_plugin_is_found_by_a_fresh_interpreter(site: Any) -> None:
    site.add("acme", {"good": "good_plugin", "bad": "bad_plugin"}, good_plugin=GOOD, bad_plugin="import nowhere_at_all")
    code = """
from registry.discovery.catalog import Catalog
for report in Catalog().plugins():
    if report.distribution == "acme":
        print(report.name, report.implementations, bool(report.fault))
"""
    environ = {**os.environ, "PYTHONPATH": str(site.folder)}
    done = fresh.run("-c", code, env=environ)
    told = ["bad () True", "good ('softmax/good.one', 'softmax/good.two') False"]
    assert done.stdout.splitlines() == told, done.stderr
    assert done.stderr.count("PluginWarning: plugin 'bad' (acme 1.0): ModuleNotFoundError") == 1


def test_a_hook_named_as_a_submodule_is_refused_since_importing_that_would_take_its_place(site: Any) -> None:
    package = site.folder / "shadowed"
    package.mkdir()
    (package / "__init__.py").write_text(
        "import registry\nKERNEL_REGISTRY_API = 1\n"
        "@registry.implements('softmax')\ndef softmax():\n    from .softmax import found\n    return found\n"
    )
    (package / "softmax.py").write_text("found = []\n")
    site.add("acme-shadowed", {"shadowed": "shadowed"})
    site.modules.append("shadowed")
    _, report = _faulty(site, "shadowed")
    assert "its hook softmax() has the name of its submodule shadowed.softmax" in report.fault
