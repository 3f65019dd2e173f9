"""What a fingerprint sees: code, wherever in its package; and what it does not: comments, Python's version."""

from __future__ import annotations

import ast
import hashlib
import importlib
import linecache
import os
import sys
import types
from collections.abc import Callable, Iterator
from importlib import metadata
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from registry.discovery.catalog import Catalog
from registry.discovery.loading import import_file
from registry.fingerprint import fingerprint, normalised_c, normalised_python
from registry.implementation import Implementation

Package = Callable[..., str]

MODULE = """
from registry.implementation import Implementation
from .numbers import FACTOR
from . import data
class Mine(Implementation):
    op, name = "square", "mine.square"
    def bind(self, problem, config, device, built):
        from .late import times
        return times(FACTOR)
"""
FILES = {
    "__init__": "",
    "kernels": MODULE,
    "numbers": "import sys\nfrom .deep import BASE\nFACTOR = 2 * BASE\n",
    "deep": "BASE = 3\n",
    "data": "TABLE = [1, 2]\n",
    "late": "def times(factor):\n    return factor\n",
    "other": "UNUSED = 1\n",
}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Package]:
    """Writes a package of its own name, imports its ``kernels`` and returns the fingerprint of ``Mine``."""
    monkeypatch.syspath_prepend(str(tmp_path))
    made: list[str] = []

    def write(**changed: str) -> str:
        name = f"acme_{tmp_path.name}_{len(made)}"
        made.append(name)
        (tmp_path / name).mkdir()
        for file, text in {**FILES, **changed}.items():
            (tmp_path / name / f"{file}.py").write_text(text)
        importlib.invalidate_caches()
        found: str = importlib.import_module(f"{name}.kernels").Mine().fingerprint()
        return found

    yield write
    for name in [each for each in sys.modules if each.partition(".")[0] in made]:
        del sys.modules[name]


@pytest.mark.parametrize(
    "changed",
    [
        {"numbers": FILES["numbers"].replace("2 *", "4 *")},
        {"deep": "BASE = 5\n"},
        {"data": "TABLE = [1, 3]\n"},
        {"late": FILES["late"].replace("return factor", "return -factor")},
        {"kernels": MODULE.replace("times(FACTOR)", "times(1)")},
    ],
    ids=["imported constant", "constant of a constant", "module", "import inside a function", "own module"],
)
def test_a_change_in_a_module_of_the_package_is_seen(package: Package, changed: dict[str, str]) -> None:
    assert package() != package(**changed)


def test_comments_unused_modules_and_empty_files_are_not_seen(package: Package) -> None:
    same = {"deep": '"""Words."""\n\n# a remark\nBASE = 3\n', "other": "UNUSED = 2\n"}
    assert package() == package(**same)
    assert package(data="") != package()


def test_a_late_import_changes_nothing(package: Package) -> None:
    before = package()
    name = max(module for module in sys.modules if module.startswith("acme_") and module.endswith(".kernels"))
    importlib.import_module(name.replace(".kernels", ".late"))
    assert sys.modules[name].Mine().fingerprint() == before


def test_a_base_class_of_another_package_is_seen(package: Package) -> None:
    prints = []
    for text in (MODULE, MODULE.replace("times(FACTOR)", "times(1)")):
        package(kernels=text)
        name = max(module for module in sys.modules if module.startswith("acme_") and module.endswith(".kernels"))
        derived = type("Derived", (sys.modules[name].Mine,), {"__module__": __name__})
        prints.append(derived().fingerprint())
    assert prints[0] != prints[1]


def test_a_reloaded_module_has_its_new_fingerprint(package: Package, tmp_path: Path) -> None:
    before = package()
    name = next(module for module in sys.modules if module.startswith("acme_") and module.endswith(".kernels"))
    module = sys.modules[name]
    file = Path(str(module.__file__))
    file.write_text(MODULE.replace("times(FACTOR)", "times(1)"))
    os.utime(file, (1, 1))
    # what runs is still the old code
    assert module.Mine().fingerprint() == before
    assert importlib.reload(module).Mine().fingerprint() != before


FILE = """
import importlib
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from registry.backends import CudaImplementation
{use}

TEXT = Path(__file__).with_name("kernel.cu").read_text()

class Mine(CudaImplementation):
    op, name = "square", "mine.square"
    def launch(self, problem, config, device):
        return None
"""
USES = {
    "import of a file beside it": "import {name}",
    "import inside a function": "def late():\n    import {name}",
    "importlib by name": "kernels = importlib.import_module({name!r})",
    "importlib by file": 'spec = spec_from_file_location("kernels", Path(__file__).with_name("{name}.py"))',
    "import of what a package holds": "from {name}_package import inner",
    "import of a file that imports": "import {name}_above",
}


@pytest.mark.parametrize("use", USES.values(), ids=USES.keys())
def test_source_beside_a_plugin_file_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use: str) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    name = f"beside_{tmp_path.name}"

    def written(constant: int) -> str:
        for each in [each for each in sys.modules if each.startswith(name)]:
            del sys.modules[each]
        (tmp_path / "kernel.cu").write_text("__global__ void square();")
        (tmp_path / "plugin.py").write_text(FILE.format(use=use.format(name=name)))
        (tmp_path / f"{name}.py").write_text(f"CONSTANT = {constant}  # in one file\n")
        (tmp_path / f"{name}_above.py").write_text(f"from {name} import CONSTANT\n")
        (tmp_path / f"{name}_package").mkdir(exist_ok=True)
        (tmp_path / f"{name}_package" / "__init__.py").write_text("")
        (tmp_path / f"{name}_package" / "inner.py").write_text(f"CONSTANT = {constant}\n")
        return _file_fingerprint(tmp_path / "plugin.py")

    assert written(1) == written(1)
    assert written(1) != written(2)


def test_kernel_text_that_a_module_reads_is_seen(tmp_path: Path) -> None:
    file, text = tmp_path / "plugin.py", tmp_path / "kernel.cu"
    file.write_text(FILE.format(use=""))

    def written(kernel: str) -> str:
        text.write_text(kernel)
        return _file_fingerprint(file)

    same = written("__global__ void f() { g(1); }"), written("__global__ void f() { g(1); } // words")
    assert same[0] == same[1] != written("__global__ void f() { g(2); }")


@pytest.mark.parametrize(
    ("use", "place"),
    [
        ('NUMBERS = json.loads(Path(__file__).with_name("numbers.json").read_text())', "numbers.json"),
        ('NUMBERS = files("package").joinpath("tiles").joinpath("numbers.toml")', "tiles/numbers.toml"),
        ('LIBRARY = Path(__file__).parent / "compiled/library.so"', "compiled/library.so"),
        ("import beside_extension", f"beside_extension{EXTENSION_SUFFIXES[0]}"),
    ],
)
def test_data_and_compiled_code_that_a_module_uses_are_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use: str, place: str
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    late = f"def late():\n    {use}"
    (tmp_path / place).parent.mkdir(exist_ok=True)

    def written(content: str) -> str:
        (tmp_path / place).write_text(content)
        (tmp_path / "plugin.py").write_text(FILE.format(use=late).replace("TEXT =", "TEXT = '' #"))
        return _file_fingerprint(tmp_path / "plugin.py")

    assert written("1") == written("1")
    assert written("1") != written("2")


def test_of_an_installed_package_the_version_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "plugin.py"
    file.write_text("import pluggy\nimport os\nimport torch\n\ndef late():\n    import missing_package\n" + MINE)
    sources = [str(source) for source in _loaded(file).sources() if not isinstance(source, types.ModuleType)]
    assert sources == [repr(f"pluggy {metadata.version('pluggy')}")]
    before = _loaded(file).fingerprint()
    monkeypatch.setattr("registry.source_files.installed_package", lambda package: f"{package} 99")
    assert _loaded(file).fingerprint() != before


def test_python_cuts_the_text_of_an_f_string_as_it_likes(monkeypatch: pytest.MonkeyPatch) -> None:
    text = 'f"a{b:>{c}}d" f"{e}"\n'
    expected = normalised_python(text)
    parse = ast.parse

    def cut(text: str) -> ast.Module:
        tree = parse(text)
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                halves = [[ast.Constant(""), each, ast.Constant("")] for each in node.values]
                node.values = [part for half in halves for part in half]
        return tree

    normalised_python.cache_clear()
    monkeypatch.setattr("registry.fingerprint.ast.parse", cut)
    assert normalised_python(text) == expected
    normalised_python.cache_clear()


MINE = """
from registry.implementation import Implementation
class Mine(Implementation):
    op, name = "square", "mine.square"
    def bind(self, problem, config, device, built):
        return None
"""


def _loaded(file: Path) -> Implementation:
    made: Implementation = import_file(file).Mine()  # type: ignore[attr-defined]
    return made


def _file_fingerprint(file: Path) -> str:
    return _loaded(file).fingerprint()


CELL = """
from registry.implementation import Implementation
FACTOR = 2
def times(x):
    # a remark
    return FACTOR * x
class Mine(Implementation):
    op, name = "square", "mine.square"
    scale = 1
    @property
    def extra(self):
        return times(3)
    def bind(self, problem, config, device, built):
        return times(self.scale)
"""


@pytest.mark.parametrize("kept", [True, False], ids=["source kept, as a notebook does", "source not kept"])
def test_a_class_that_is_in_no_file_has_a_fingerprint(kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def of(text: str) -> str:
        file = f"<cell {hashlib.sha256(text.encode()).hexdigest()[:8]}>"
        module = types.ModuleType("cells")
        monkeypatch.setitem(sys.modules, "cells", module)
        if kept:
            monkeypatch.setitem(linecache.cache, file, (len(text), None, text.splitlines(True), file))
        exec(compile(text, file, "exec"), vars(module))
        made: Implementation = module.Mine()
        return made.fingerprint()

    assert of(CELL) == of(CELL.replace("# a remark", "# another\n    # remark")) == of(CELL + "LATER = 1\n")
    for old, new in (("FACTOR = 2", "FACTOR = 3"), ("* x", "+ x"), ("scale = 1", "scale = 2"), ("(3)", "(4)")):
        assert of(CELL) != of(CELL.replace(old, new)), new


def test_the_box_is_covered_with_what_its_modules_share(catalog: Catalog) -> None:
    def modules(op: str, name: str) -> set[str]:
        sources = catalog.implementation(op, name).sources()
        return {source.__name__ for source in sources if isinstance(source, types.ModuleType)}

    for name in ("torch.native", "torch.compile", "torch.tinygemm"):
        assert "registry_torch.int4" in modules("gemm_int4", name)
    assert "registry_cpp.base" in modules("square", "cpp.blocks")
    assert "registry_cuda.number" in modules("square", "cuda.vector")
    assert {"registry_cuda.forms", "registry_cuda.number"} <= modules("softmax", "cuda.row")


def test_the_syntax_says_the_same_under_every_version_of_python() -> None:
    text = 'def f(x: int, *, y=None) -> None:\n    """Words."""\n    return g(x)["é"] if not x else f"{y!r:>{x}}"\n'
    # a dump of Python 3.13 leaves out what 3.11 shows as an empty list, 3.12 has type_params, names print as they may
    assert normalised_python(text) == (
        "Module(body=[FunctionDef(name='f', args=arguments(args=[arg(arg='x', annotation=Name(id='int', ctx=Load()))],"
        " kwonlyargs=[arg(arg='y')], kw_defaults=[Constant()]), body=[Return(value=IfExp(test=UnaryOp(op=Not(),"
        " operand=Name(id='x', ctx=Load())), body=Subscript(value=Call(func=Name(id='g', ctx=Load()),"
        " args=[Name(id='x', ctx=Load())]), slice=Constant(value='\\xe9'), ctx=Load()),"
        " orelse=JoinedStr(values=[FormattedValue(value=Name(id='y', ctx=Load()), conversion=114,"
        " format_spec=JoinedStr(values=[Constant(value='>'), FormattedValue(value=Name(id='x', ctx=Load()),"
        " conversion=-1)]))])))], returns=Constant())])"
    )


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("a = b; // words\nc;", "a  =  b;\n\n/* more\nwords */ c;", True),
        ("x = '\"'; // one\ny = '\"';", "x = '\"'; // two\ny = '\"';", True),
        ("x = '\"'; a; y = '\"';", "x = '\"'; b; y = '\"';", False),
        ("x = '\"'; a  b; y = '\"';", "x = '\"'; a b; y = '\"';", True),
        ("x = '\\''; // one", "x = '\\''; // two", True),
        ('s = "// one";', 's = "// two";', False),
        ('s = R"(a // one\n" b)";', 's = R"(a // two\n" b)";', False),
        ('s = R"x(a  b)" )x";', 's = R"x(a b)" )x";', False),
        ("#define F (x)\n", "#define F(x)\n", False),
        ("#  define F(x)  y\n", "#  define F(x) y\n", True),
        ("a +//one\n b", "a + // two\n b", True),
        ("1'000'000 /* one */", "1'000'000 /* two */", True),
        ("a++ + b", "a + ++b", False),
    ],
)
def test_cpp_tokens(one: str, other: str, same: bool) -> None:
    assert (normalised_c(one) == normalised_c(other)) is same


def test_sources_are_kept_apart() -> None:
    assert fingerprint(["a", "b"]) != fingerprint(["a b"])
