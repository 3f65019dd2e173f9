"""A dotted name that stands in a string or a comment is there: after a move nothing else would tell.

It is looked for in the whole text of every file, in which names within code are there, too.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from registry.tuner.workers.integrity import WATCHED

ROOT = Path(__file__).parents[1]
FOLDERS = ("registry", "kernel_registry", "tuning_db", "plugins", "benchmarks", "tests", "docs", "examples")
BOX = (
    "registry_torch", "registry_triton", "registry_cuda", "registry_cpp", "registry_humming", "registry_quack",
    "registry_liger", "registry_flashinfer", "registry_flash_attn", "registry_cublaslt",
)  # fmt: skip
PACKAGES = ("registry", "kernel_registry", "tuning_db", "benchmarks", *BOX)
DOTTED = re.compile(rf"(?<![\w./@-])((?:{'|'.join(PACKAGES)})(?:\.[A-Za-z_]\w*)+(?::[a-z_]\w*)?)(?![\w-]|\.\w)")
IMPORTED = re.compile(rf"from ((?:{'|'.join(PACKAGES)})(?:\.\w+)*) import (\w+(?:, \w+)*)")
ADJACENT = re.compile(r"""(?<!\\)(["'])\s*\n\s*[A-Za-z]{0,2}\1""")
"""The end of a string and the begin of the next one, which Python joins."""
FILES = re.compile(r"\.(?:py|md|db|yaml|yml|jsonl|json|toml|html|log|gz|txt|csv)$")
"""Ends of what is a file's name."""


def texts() -> Iterator[tuple[str, str]]:
    """Every Python file and what is in it, this one left out."""
    for path in sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")):
        if path != Path(__file__):
            yield str(path.relative_to(ROOT)), path.read_text()


def named(text: str) -> Iterator[str]:
    """The dotted names of ours in a text, those that code in it imports too."""
    joined = ADJACENT.sub("", text)
    yield from (name for name in DOTTED.findall(joined) if not FILES.search(name))
    for module, names in IMPORTED.findall(joined):
        yield from (f"{module}.{name}" for name in names.split(", "))


def is_there(name: str) -> bool:
    """Whether a module has that name, or something in the innermost module that is named."""
    parts = name.replace(":", ".").split(".")
    for count in range(len(parts), 0, -1):
        try:
            module = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        found: object = module
        for part in parts[count:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


def test_every_dotted_name_in_a_string_is_there() -> None:
    everything = {name: place for place, text in texts() for name in named(text)}
    assert len(everything) > 50
    missing = [f"{place}: {name}" for name, place in sorted(everything.items()) if not is_there(name)]
    assert not missing, "\n".join(missing)


@pytest.mark.parametrize("watched", WATCHED)
def test_what_integrity_watches_is_loaded_in_a_worker(watched: str) -> None:
    importlib.import_module("registry.tuner.workers.worker_process")
    assert find_spec(watched) is not None
    assert any(name == watched or name.startswith(f"{watched}.") for name in sys.modules)


def test_a_name_that_is_not_there_would_be_found() -> None:
    assert list(named("run as ``python -m registry.tuner.keeper``, reads registry.yaml")) == ["registry.tuner.keeper"]
    imported = list(named("from registry.tuner import spawning, run"))
    assert imported[1:] == ["registry.tuner.spawning", "registry.tuner.run"]
    assert list(named("call registry.tuner.run:tune")) == ["registry.tuner.run:tune"]
    assert list(named('("see registry.tuner."\n    f"run:tune")')) == ["registry.tuner.run:tune"]
    assert not is_there("registry.tuner.run:no_function")
    assert not is_there("registry.tuner.keeper")
    assert is_there("registry.tuner.limits.Limits")
