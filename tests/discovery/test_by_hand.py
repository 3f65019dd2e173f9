"""Ops, implementations and files of an author who has no package yet."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import registry
from registry.artifact import Built
from registry.contract import Op
from registry.device import Device
from registry.discovery.catalog import Catalog
from registry.discovery.loading import file_module
from registry.errors import InvalidDefinitionError, PluginError, UnknownNameError
from registry.implementation import Implementation, Run
from registry.problem import Problem
from registry.space import Config


class Doubling(Implementation):
    """square as a product."""

    op = "square"
    name = "mine.double"

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """Write through ``out=``."""
        return lambda outputs, arguments, scratch: torch.mul(arguments[0], arguments[0], out=outputs[0])


@pytest.fixture
def op(row_sum: str) -> Op:
    """mine::row_sum."""
    made: dict[str, Any] = {}
    exec(row_sum, made)
    op: Op = made["row_sum"]("mine::row_sum")
    return op


@pytest.fixture
def bare() -> Catalog:
    """The ops in the box and no plugin."""
    return Catalog([], {})


@pytest.fixture
def write(tmp_path: Path, header: str) -> Callable[[str], Path]:
    """Write kernels.py."""

    def written(source: str) -> Path:
        path = tmp_path / "kernels.py"
        path.write_text(header.replace("KERNEL_REGISTRY_API = 1", "") + source)
        return path

    return written


def test_a_registered_implementation_is_found_and_seen(bare: Catalog) -> None:
    before = bare.generation
    bare.register(Doubling())
    assert bare.implementation("square", "mine.double").op == "square"
    assert bare.generation > before
    assert bare.plugins()[-1].implementations == ("square/mine.double",)


def test_the_same_class_may_be_registered_again_and_another_may_not(bare: Catalog) -> None:
    bare.register(Doubling())
    again = Doubling()
    bare.register(again)
    assert bare.implementations("square") == (again,)

    class Other(Doubling):
        pass

    with pytest.raises(InvalidDefinitionError, match=r"the name 'mine.double' is taken"):
        bare.register(Other())


def test_what_is_registered_is_checked(bare: Catalog) -> None:
    class Nowhere(Doubling):
        op = "sqare"

    class Nameless(Doubling):
        name = "nameless"

    with pytest.raises(UnknownNameError, match="did you mean square"):
        bare.register(Nowhere())
    with pytest.raises(InvalidDefinitionError, match=r"plugin\.variant"):
        bare.register(Nameless())
    with pytest.raises(
        InvalidDefinitionError, match=r"not an Implementation's instance\n  did you mean register\(Doub"
    ):
        bare.register(Doubling)  # type: ignore[arg-type]
    with pytest.raises(InvalidDefinitionError, match=r"a class that derives from registry\.Implementation"):
        bare.register(7)  # type: ignore[arg-type]


def test_a_defined_op_is_there_and_its_name_is_taken(bare: Catalog, op: Op) -> None:
    before = bare.generation
    bare.define(op)
    assert "mine::row_sum" in bare.ops()
    assert bare.implementations("mine::row_sum") == ()
    assert bare.generation > before
    with pytest.raises(InvalidDefinitionError, match=r"taken by plugin .registry.register.") as raised:
        bare.define(op)
    assert "this process has defined mine::row_sum before" in raised.value.hint
    assert "registry.reload()" in raised.value.hint
    for name in ("vendor::a__b", "vendor__a::b"):
        taken = replace(op, name=name, schema=op.schema.replace("mine::row_sum", name))
        if name == "vendor::a__b":
            bare.define(taken)
    with pytest.raises(InvalidDefinitionError, match=r"'vendor__a::b': its name is taken .* as 'vendor::a__b'"):
        bare.define(taken)


def test_an_unknown_op_of_an_unknown_vendor_is_told_how_it_comes_in(bare: Catalog, op: Op) -> None:
    with pytest.raises(UnknownNameError, match=r"'mine::row_sun'\n  is the plugin of mine installed, or its"):
        bare.op("mine::row_sun")
    bare.define(op)
    with pytest.raises(UnknownNameError, match=r"'mine::row_sun'\n  did you mean mine::row_sum"):
        bare.op("mine::row_sun")


def test_an_op_of_a_plugin_that_is_named_without_its_vendor_is_told(bare: Catalog, op: Op) -> None:
    bare.define(op)
    with pytest.raises(UnknownNameError, match=r"'row_sum'\n  of plugins there is mine::row_sum"):
        bare.op("row_sum")


@pytest.mark.parametrize("vendor", ["aten", "prim", "prims", "kernel_registry"])
def test_what_is_defined_by_hand_takes_no_name_of_torchs_operators(bare: Catalog, op: Op, vendor: str) -> None:
    named = replace(op, name=f"{vendor}::row_sum", schema=op.schema.replace("mine::", f"{vendor}::"))
    with pytest.raises(
        InvalidDefinitionError, match=rf"torch\.ops\.{vendor} belongs to .*\n  take a vendor of your own"
    ):
        bare.define(named)


def test_what_is_defined_by_hand_takes_no_name_of_the_box_or_of_an_installed_plugin(site: Any, op: Op) -> None:
    site.add("acme-kernels", {"mine": "registry_mine"}, registry_mine="")
    with pytest.raises(InvalidDefinitionError, match=r"ops of mine:: belong to plugin 'mine' \(acme-kernels 1.0\)"):
        Catalog(site.entry_points, {}).define(op)
    Catalog(site.entry_points, {"KERNEL_REGISTRY_BLOCK": "mine"}).define(op)
    with pytest.raises(InvalidDefinitionError, match=r"bare names belong to .*\n  name it vendor::total"):
        Catalog([], {}).define(replace(op, name="total", schema="total(Tensor x) -> Tensor y"))


def test_what_is_registered_by_hand_bears_no_installed_plugins_name(site: Any) -> None:
    site.add("acme-kernels", {"mine": "registry_mine"}, registry_mine="")
    told = (
        r"'mine.double' bears the name of another plugin, 'mine'\n  begin it with a name of your own, e.g. 'own.double'"
    )
    with pytest.raises(InvalidDefinitionError, match=told):
        Catalog(site.entry_points, {}).register(Doubling())
    Catalog(site.entry_points, {"KERNEL_REGISTRY_BLOCK": "mine"}).register(Doubling())


@pytest.mark.parametrize("file", ["mine.py", "registry_mine.py", "kernels.py"])
def test_only_the_file_of_an_installed_plugins_name_has_implementations_of_it(
    site: Any, tmp_path: Path, header: str, file: str
) -> None:
    site.add("acme-kernels", {"mine": "registry_mine"}, registry_mine="")
    path = tmp_path / file
    path.write_text(header + "@implements('square')\ndef made():\n    return [Made('square', 'mine.double')]\n")
    catalog = Catalog(site.entry_points, {})
    if file == "kernels.py":
        with pytest.raises(PluginError, match=r"'mine.double' bears the name of another plugin, 'mine'"):
            catalog.load_file(path)
    else:
        catalog.load_file(path)
        assert [one.name for one in catalog.implementations("square")] == ["mine.double"]


@pytest.mark.parametrize(("file", "free"), [("mine.py", True), ("registry_mine.py", True), ("kernels.py", False)])
def test_a_file_may_be_the_plugin_of_its_name_that_is_installed_too(
    site: Any, tmp_path: Path, header: str, row_sum: str, file: str, free: bool
) -> None:
    site.add("acme-kernels", {"mine": "registry_mine"}, registry_mine="")
    path = tmp_path / file
    path.write_text(f"{header}{row_sum}\n@defines\ndef ops(): return [row_sum('mine::row_sum')]")
    catalog = Catalog(site.entry_points, {})
    if free:
        catalog.load_file(path)
        assert catalog.plugins()[-1].ops == ("mine::row_sum",)
    else:
        with pytest.raises(PluginError, match="ops of mine:: belong to plugin 'mine'"):
            catalog.load_file(path)


BY_CALLS = """
import registry
registry.define(row_sum("mine::row_sum"))
registry.register(Made("mine::row_sum", "mine.loop"))
registry.register(Made("square", "mine.square"))
"""


def test_a_file_that_defines_and_registers_by_calls_is_a_plugin_in_every_process(
    bare: Catalog, write: Callable[[str], Path], row_sum: str
) -> None:
    path = write(row_sum + BY_CALLS)
    for catalog in (bare, Catalog([], {})):
        catalog.load_file(path)
        sys.modules.pop(file_module(path))
        assert catalog.plugins()[-1].ops == ("mine::row_sum",)
        assert [found.name for found in catalog.implementations("mine::row_sum")] == ["mine.loop"]
        assert [found.name for found in catalog.implementations("square")] == ["mine.square"]
    assert "mine::row_sum" not in registry.ops(), "it is the loading catalog's"


def test_nothing_stays_of_a_file_that_fails_after_its_calls(
    bare: Catalog, write: Callable[[str], Path], row_sum: str
) -> None:
    with pytest.raises(PluginError, match="ZeroDivisionError"):
        bare.load_file(write(row_sum + BY_CALLS + "1 / 0"))
    assert "mine::row_sum" not in bare.ops()
    assert bare.implementations("square") == ()


def test_a_file_is_a_plugin(bare: Catalog, write: Callable[[str], Path], row_sum: str) -> None:
    source = """
@defines
def ops(): return [row_sum("mine::row_sum")]
@implements("mine::row_sum")
def one(): return [Made("mine::row_sum", "mine.loop")]
@implements("square")
def two(): return [Made("square", "mine.square")]
"""
    path = write(row_sum + source)
    before = bare.generation
    bare.load_file(path)
    assert [found.name for found in bare.implementations("mine::row_sum")] == ["mine.loop"]
    assert [found.name for found in bare.implementations("square")] == ["mine.square"]
    assert bare.generation > before
    assert bare.files == (str(path),)
    assert bare.plugins()[-1].ops == ("mine::row_sum",)
    # its source can be hashed, which the fingerprint needs
    assert len(bare.implementation("square", "mine.square").fingerprint()) == 64
    bare.load_file(str(path))
    assert bare.files == (str(path),)


def test_another_catalog_loads_the_same_files(bare: Catalog, write: Callable[[str], Path]) -> None:
    bare.load_file(write("@implements('square')\ndef f(): return [Made('square', 'mine.square')]"))
    other = Catalog([], {})
    for file in bare.files:
        other.load_file(file)
    assert [found.name for found in other.implementations("square")] == ["mine.square"]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def (", r"line 12: SyntaxError"),
        ("1 / 0", "ZeroDivisionError: division by zero .at .*kernels.py:12"),
        ("x = 1", "it registers nothing\n.*@registry.implements"),
        ("@implements('sqare')\ndef f(): return []", "unknown op 'sqare'\n.*did you mean square"),
        ("@implements('square')\ndef f(): return 1 / 0", "its implementations of square: ZeroDivisionError"),
        ("@implements('square')\ndef f(): return [Made]", "expected an instance"),
        ("@implements('square')\ndef f(x): return []", r"f\(x\) Argument"),
        ("KERNEL_REGISTRY_API = 7", "written for version 7"),
    ],
)
def test_a_bad_file_is_refused_whole(
    bare: Catalog, write: Callable[[str], Path], row_sum: str, source: str, expected: str
) -> None:
    whole = f"""{row_sum}
@defines
def ops(): return [row_sum("mine::row_sum")]
"""
    path = write(source if source in {"def (", "1 / 0", "x = 1"} else whole + source)
    with pytest.raises(PluginError, match=expected) as fault:
        bare.load_file(path)
    assert str(path) in fault.value.message
    assert "mine::row_sum" not in bare.ops()
    assert bare.implementations("square") == ()
    assert bare.files == ()
    assert file_module(path) not in sys.modules


SLIPS = {
    "factory": (
        "OP = registry.gemm_op('mine::g(Tensor a, Tensor b) -> Tensor y', None, weigths=())",
        "OP =",
        "weigths",
    ),
    "replaced": ("OP = replace(SQUARE, schema='square(')", "OP =", "; expected e.g. '"),
    "space": ("SPACE = registry.Space(T=[(1, 2)])", "SPACE =", "a tuple (.*); a value is a plain int"),
    "register": ("registry.register(Made)", "registry.register(", "not an Implementation's instance"),
    "torch": ("torch.set_default_dtype(torch.int32)", "torch.set_default_dtype(", "only floating-point types"),
    "name": ("@implements('square')\ndef f(): return [Made('square', 'mine')]", "class Made", "Made.name is 'mine'"),
    "op": ("@implements('square')\ndef f(): return [Made('sqare', 'a.b')]", "class Made", "'sqare', expected 'square'"),
    "class": ("@implements('square')\ndef f(): return [Made]", "class Made", "expected an instance of it"),
    "none": ("@implements('square')\ndef f(): pass", "@implements", "returned None, expected a list"),
    "misspelt": ("@implements('sqare')\ndef f(): return []", "@implements", "did you mean square?"),
    "arguments": ("@implements('square')\ndef f(device): return []", "@implements", "a hook takes no arguments"),
    "defines": ("@defines\ndef f(): return [7]", "@defines", "7 is defined as an op"),
}


@pytest.mark.parametrize(("source", "place", "message"), SLIPS.values(), ids=SLIPS)
def test_a_fault_of_a_file_is_told_with_the_line_of_the_file(
    bare: Catalog, write: Callable[[str], Path], source: str, place: str, message: str
) -> None:
    imports = "import registry, torch\nfrom dataclasses import replace\nfrom registry.contracts import SQUARE\n"
    path = write(imports + source)
    with pytest.raises(PluginError, match=re.escape(message).replace(re.escape("(.*)"), r"\(.*\)")) as raised:
        bare.load_file(path)
    told = str(raised.value)
    (line,) = [number for number, held in enumerate(path.read_text().splitlines(), 1) if place in held]
    assert f"kernels.py:{line})" in told
    assert told.count(".py:") == 2, "the path of the file, and one place"


def test_a_corrected_file_can_be_loaded(bare: Catalog, write: Callable[[str], Path], row_sum: str) -> None:
    good = f"{row_sum}\n@defines\ndef ops(): return [row_sum('mine::row_sum')]\n"
    path = write(good + "@implements('square')\ndef f(): return [Made]")
    with pytest.raises(PluginError):
        bare.load_file(path)
    bare.load_file(write(good))
    assert "mine::row_sum" in bare.ops()


def test_a_file_that_is_not_there_or_no_python_is_said(bare: Catalog, tmp_path: Path) -> None:
    with pytest.raises(PluginError, match=r"nowhere.py: no such file"):
        bare.load_file(tmp_path / "nowhere.py")
    (tmp_path / "kernels.yaml").write_text("softmax: []\n")
    with pytest.raises(PluginError, match=r"not a \.py file"):
        bare.load_file(tmp_path / "kernels.yaml")
