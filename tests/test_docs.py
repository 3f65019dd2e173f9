"""The guides are true: code runs, shapes load, options exist, the command line's page and the results are current."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import re
import runpy
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import results_table
from benchmarks.models import table as models_table
from registry import Candidate, Device, Op
from registry.arguments.inputs import arguments_of
from registry.backends import InlineImplementation
from registry.cli.main import new_registry_app
from registry.cli.tune import new_tune_app
from registry.discovery.catalog import Catalog
from registry.implementation import Implementation
from registry.testing import check_implementation
from registry.tuner.planning.variants import variants_at
from registry.tuner.shapes.shapes import load_shapes

from . import fresh
from .covering import covering

ROOT = Path(__file__).parents[1]
PACKAGES = ("kernel_registry", "registry", "tuning_db")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

_MARKED = re.compile(r"<!-- run(?:: (?P<file>\S+))? -->\n```python\n(?P<code>.*?)```", re.DOTALL)
_BLOCK = re.compile(r"```(?P<language>\w+)\n(?P<text>.*?)```", re.DOTALL)
_LINK = re.compile(r"\]\((?!https?:)([^)#]*)(?:#([^)]+))?\)")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
H200 = Device("cuda", 0, "NVIDIA H200", "sm_90", 132, 141 << 30, 60 << 20)


REPEATED = ("writing-a-plugin.md",)
"""Pages whose scripts do what other tests do: those of the backend for torch.compile build with a compiler for 16 s."""


def marked(named: bool) -> Iterator[object]:
    """Python blocks to be run: those that stand for a file of a given name, or those that do not."""
    for page in PAGES:
        for block in _MARKED.finditer(page.read_text()):
            if bool(block["file"]) == named:
                # scripts of guides repeat what those of README.md and the other pages do
                repeats = page.parent.name == "guides" or page.name in REPEATED
                marks = [pytest.mark.thorough] if repeats and not named else []
                name = f"{page.name}-{block['file'] or 'script'}"
                yield pytest.param(block["file"] or page.name, block["code"], id=name, marks=marks)


def blocks(language: str) -> Iterator[tuple[Path, str]]:
    for page in PAGES:
        for block in _BLOCK.finditer(page.read_text()):
            if block["language"] == language:
                yield page, block["text"]


LEAVE_NOTHING = ("README.md", "pytorch.md", "quantized-checkpoints.md", "transformers.md")
"""Pages whose scripts register nothing: these run here, where all that they import is imported."""


@pytest.mark.parametrize(("page", "code"), list(marked(named=False)))
@pytest.mark.few(2)
def test_a_script_in_the_guides_runs(page: str, code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "script.py"
    script.write_text(code)
    if page in LEAVE_NOTHING:
        run_here(script)
        assert capsys.readouterr().err == ""
        return
    path = os.pathsep.join([str(ROOT), str(ROOT / "plugins")])
    done = fresh.run(script, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, limit_s=280, taken_apart=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def run_here(script: Path) -> None:
    """Run a script in this process, with the warnings that Python shows; how much transformers tells stays as it is."""
    from transformers.utils import logging

    told, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            for hidden in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
                warnings.simplefilter("ignore", hidden)
            runpy.run_path(str(script), run_name="__main__")
    finally:
        logging.set_verbosity(told)
        if bars:
            logging.enable_progress_bar()


def everything(catalog: Catalog) -> list[Implementation]:
    return [found for op in catalog.ops() for found in catalog.implementations(op)]


@pytest.mark.parametrize(("name", "code"), list(marked(named=True)))
@pytest.mark.few(2)
def test_a_plugin_in_the_guides_is_sound(name: str, code: str, tmp_path: Path, catalog: Catalog) -> None:
    check_plugin(name, code, tmp_path, catalog, 2)


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "code"), list(marked(named=True)))
def test_a_plugin_in_the_guides_is_right_on_every_example(
    name: str, code: str, tmp_path: Path, catalog: Catalog
) -> None:
    check_plugin(name, code, tmp_path, catalog, None)


def check_plugin(name: str, code: str, tmp_path: Path, catalog: Catalog, most: int | None) -> None:
    """What a file's code brings: on a CPU it is checked on the op's examples, or on ``most`` of those that differ."""
    file = tmp_path / name
    file.write_text(code)
    before = {(found.op, found.name) for found in everything(catalog)}
    catalog.load_file(file)
    brought = [found for found in everything(catalog) if (found.op, found.name) not in before]
    assert brought
    for implementation in brought:
        if "cpu" in implementation.device_types:
            op = catalog.op(implementation.op)
            examples = [op.problem_of(dims) for dims in op.examples]
            fit = [each for each in examples if not list(implementation.unsupported(each, Device.of("cpu")))]
            check_implementation(
                implementation, op, problems=examples if most is None else covering(fit)[:most], device="cpu"
            )
        elif not isinstance(implementation, InlineImplementation):  # which needs nvcc
            compile_for_a_gpu(implementation, catalog.op(implementation.op))


def compile_for_a_gpu(implementation: Implementation, op: Op) -> None:
    """Compile the default of each dtype's first example for an H200, which need not be here."""
    for dims in {dims["dtype"]: dims for dims in reversed(op.examples)}.values():
        problem = op.problem_of(dims)
        candidate = Candidate(implementation, implementation.default(problem, H200))
        variants = variants_at(op, candidate, problem, arguments_of(op, problem), H200)
        if variants is not None:  # None where it says that it does not support the problem
            assert all(implementation.compile(variant, H200.target).path for variant in variants)


def test_shapes_in_the_guides_load(tmp_path: Path, catalog: Catalog) -> None:
    found = list(blocks("yaml"))
    assert found
    for page, text in found:
        path = tmp_path / "shapes.yaml"
        path.write_text(text)
        assert load_shapes(path, catalog), page


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda path: path.name)
@pytest.mark.few(2)
def test_the_shapes_in_the_box_load_and_cover_every_op_of_it(path: Path, catalog: Catalog) -> None:
    shapes, ops = load_shapes(path, catalog), {name: catalog.op(name) for name in catalog.ops() if "::" not in name}
    # gradients are for training, which is no laptop's work
    gradients = {op.backward.op for op in ops.values() if op.backward}
    assert shapes.keys() >= ops.keys() - (gradients if path.name != "llm.yaml" else set())
    assert all(shapes.values())


def test_every_command_in_the_guides_exists() -> None:
    app = new_registry_app()
    known = {("tune",), *((command.name,) for command in app.registered_commands)}
    for group in app.registered_groups:
        known |= {(group.name, command.name) for command in group.typer_instance.registered_commands}
    page = (ROOT / "docs" / "cli.md").read_text()
    lines = [line.removeprefix("$ ") for _, text in blocks("console") for line in text.splitlines() if line[:2] == "$ "]
    ours = [line.partition("#")[0].split() for line in lines if line.split()[0] in {"tune", "registry"}]
    assert len(ours) > 10
    for program, *arguments in ours:
        assert program == "tune" or {tuple(arguments[:1]), tuple(arguments[:2])} & known, arguments
        for option in (word for word in arguments if word.startswith("--")):
            assert f"  {option}" in page or f", {option}" in page, option


def test_the_page_of_the_command_line_is_current() -> None:
    spec = importlib.util.spec_from_file_location("generate_cli", ROOT / "docs" / "generate_cli.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (ROOT / "docs" / "cli.md").read_text() == module.page(), "run `make docs`"


def test_every_variable_is_on_that_page() -> None:
    sources = [path for folder in PACKAGES for path in (ROOT / folder).rglob("*.py")]
    read = {name for path in sources for name in re.findall(r'"(KERNEL_REGISTRY_[A-Z_]+)"', path.read_text())}
    read.discard("KERNEL_REGISTRY_API")  # of a plugin's module
    page = (ROOT / "docs" / "cli.md").read_text()
    assert read == set(re.findall(r"^\| `(KERNEL_REGISTRY_[A-Z_]+)` \|", page, re.MULTILINE))


def test_the_tables_of_results_are_what_was_measured() -> None:
    rows = json.loads(results_table.RESULTS.read_text())
    text = results_table.PAGE.read_text()
    assert text == results_table.filled(text, rows), "run python -m benchmarks.results_table"


def test_every_option_has_a_help_text() -> None:
    for app in (new_tune_app(), new_registry_app()):
        for command in app.registered_commands:
            assert command.callback is not None
            assert command.callback.__doc__


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_the_guides_lead_somewhere(page: Path) -> None:
    for target, anchor in _LINK.findall(_BLOCK.sub("", page.read_text())):
        file = page.parent / target if target else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), f"{target}#{anchor}"


def anchors(page: Path) -> set[str]:
    """What a link may name after its ``#``: the headings, as a browser of repositories writes them."""
    headings = _HEADING.findall(_BLOCK.sub("", page.read_text()))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


_DOTTED = re.compile(r"`((?:registry|tuning_db|benchmarks)(?:\.\w+)+)(?<!\.yaml)(?<!\.jsonl)(?<!\.md)")


def test_names_in_the_guides_are_there() -> None:
    named = {(page.name, name) for page in PAGES for name in _DOTTED.findall(page.read_text())}
    assert len(named) > 50
    assert sorted((page, name) for page, name in named if not is_there(name)) == []


def is_there(name: str) -> bool:
    """Whether a dotted name is a module, or something in one."""
    first, *rest = name.split(".")
    found: object = importlib.import_module(first)
    for place, part in enumerate(rest, 2):
        if not hasattr(found, part) and hasattr(found, "__path__"):
            with contextlib.suppress(ModuleNotFoundError):
                importlib.import_module(".".join([first, *rest][:place]))
        if not hasattr(found, part):
            return False
        found = getattr(found, part)
    return True


def test_the_table_of_models_is_what_was_measured() -> None:
    rows = json.loads(models_table.RESULTS.read_text())["rows"]
    text = models_table.PAGE.read_text()
    assert text == models_table.filled(text, rows), "run python -m benchmarks.models.table"


IN_A_CELL = {
    "torch.compile": r"torch\.compile|compiled too", "triton": "Triton", "cuda": r"CUDA C\+\+",
    "cpp": r"(?<!CUDA )C\+\+", "quack": "QuACK", "liger": "Liger", "flashinfer": "FlashInfer", "humming": "Humming",
    "cublaslt": "cuBLASLt", "flash_attn": "FlashAttention 2 to 4",
}  # fmt: skip
"""How docs/ops.md writes the implementations of each plugin, and those of torch.compile."""


def test_the_table_of_ops_names_the_plugins_that_implement_them(catalog: Catalog) -> None:
    rows = re.findall(r"^\| (.*`.*) \| (.*) \| (.*) \|$", (ROOT / "docs/ops.md").read_text(), re.MULTILINE)
    seen = set()
    for first, *cells in rows:
        ends = ["_backward"] if first.startswith("gradient") else ["", "_backward", "_gradients"]
        ops = [name + end for name in re.findall(r"`(\w+)`", first) for end in ends[: 3 if "gradient" in first else 1]]
        ops = [op for op in ops if op in catalog.ops()]
        seen.update(ops)
        for cell, kind in zip(cells, ("cuda", "cpu"), strict=True):
            found = [each.name for op in ops for each in catalog.implementations(op) if kind in each.device_types]
            brings = {name if name == "torch.compile" else name.partition(".")[0] for name in found} - {"torch"}
            assert {name for name, words in IN_A_CELL.items() if re.search(words, cell)} == brings, (first, kind)
    packed = {op for op in catalog.ops() if re.fullmatch(r"gemm_\w+_backward", op)}
    assert set(catalog.ops()) - seen == packed, "one row without names stands for the gradients of packed products"


def test_readme_counts_the_winners_that_are_shipped_for_an_h100() -> None:
    shipped = (ROOT / "registry/shipped/nvidia-h100-80gb-hbm3.jsonl").read_text().splitlines()
    count = sum(json.loads(line)["kind"] == "winner" for line in shipped)
    assert re.search(r"(\d+) for an H100", (ROOT / "README.md").read_text())[1] == str(count)  # type: ignore[index]
