"""Fixtures: a fresh catalog, a fresh store, and no trace in the user's own folders. And the two tiers of tests.

Every change must pass what ``make test`` runs, which is to take minutes: each class of behaviour and each op.
``@pytest.mark.thorough`` is for what repeats that: further cells of a matrix (dtypes, architectures, kinds of inputs,
instruction sets, seeds), further settings of a simulation; and for what takes seconds where the parts have quick tests
of their own: every kernel through a GPU's compiler, programs made by Inductor, runs that are killed, several devices,
the site, a benchmark from end to end. ``@pytest.mark.few(number)`` leaves so many cases of a matrix to ``make test``,
spread over it, and tests/tiers.py one in each group of parameters. ``make test-thorough`` runs both tiers: before a
release, and after a change to what is named here.
"""

from __future__ import annotations

import ast
import gc
import itertools
import os
import shutil
import signal
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from .overhead import (
    capture_root_logs,
    compile_statements_once,
    draw_few,
    draw_no_constants_of_ours,
    draw_the_same_each_time,
    look_at_plugins_once,
    look_for_plugins_once,
    tell_of_a_test_at_once,
)
from .rewriting import rewrite_a_share
from .sharing import place_of
from .tiers import spread

# nothing of ours at the start: the process that hands out tests to the others would import torch, too, and runs none
if TYPE_CHECKING:
    from registry.discovery.catalog import Catalog
    from tuning_db import Store

# a shell that runs the tests in the background has them ignore Ctrl-C, and their children too
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# on an empty cache Inductor compiles and runs a program for each instruction set that the CPU names, which takes 18 s
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")

# the lines of a source in a program of Triton, which no test reads, took an eighth of the time to compile it
os.environ.setdefault("TRITON_DISABLE_LINE_INFO", "1")

_numbers = itertools.count()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--thorough", action="store_true", help="run the tests that are marked thorough, too")


def pytest_configure() -> None:
    capture_root_logs()


# before Hypothesis' own, which reads our constants
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Thorough tests run where they are asked for: by ``--thorough``, by ``-m``, or by a name after ``::``.

    What goes together stands together, and what takes long goes first. Hypothesis draws constants of ours, more
    values, and others in each run, for ``--thorough`` alone.
    """
    if not config.getoption("thorough"):
        draw_no_constants_of_ours()
        draw_the_same_each_time()
    items.sort(key=lambda item: place_of(item.nodeid))
    if not _asks_for_thorough(config):
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("thorough")])
        items[:] = [item for item in items if not item.get_closest_marker("thorough")]


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Module | pytest.Class, obj: object) -> list[pytest.Item] | None:
    """A thorough function becomes no tests where none is asked for."""
    marks = [mark.name for mark in getattr(obj, "pytestmark", ()) if isinstance(mark, pytest.Mark)]
    return [] if "thorough" in marks and not _asks_for_thorough(collector.config) else None


@pytest.hookimpl(wrapper=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Iterator[None]:
    """Thorough cases become no tests where none is asked for: they were a third of all, made only to be left out.

    One is kept where all are thorough: without a case a test would be made of no parameters.
    """
    yield
    if not _asks_for_thorough(metafunc.config):
        quick = [case for case in metafunc._calls if not any(mark.name == "thorough" for mark in case.marks)]
        few = metafunc.definition.get_closest_marker("few")
        metafunc._calls[:] = spread(quick or metafunc._calls[:1], few.args[0] if few else len(metafunc._calls))


def _asks_for_thorough(config: pytest.Config) -> bool:
    by_name = any("::" in argument for argument in config.args)
    return bool(by_name or config.getoption("thorough") or "thorough" in config.getoption("markexpr"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With ``--dist loadscope`` tests go to the processes of a run by what they share."""
    if config.getoption("dist") != "loadscope":
        return None
    from .sharing import SharingScheduling

    return SharingScheduling(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, dict[str, Any] | None, dict[str, Any] | None]:
    """Reports go from process to process without a test's keywords, by which nothing is chosen any more.

    To write and read them took a millisecond of each test.
    """
    data = yield
    return data and {**data, "keywords": {}}


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Processes of one run share the rewriting of assertions, and Triton's interpreter looks for its builtins once.

    Meanwhile no garbage is collected, which took a second of each process: what is imported and collected stays.
    """
    if worker := getattr(session.config, "workerinput", None):
        tell_of_a_test_at_once(session.config.pluginmanager.get_plugins())
        share = int(worker["workerid"].removeprefix("gw"))
        for asked in session.config.args:
            rewrite_a_share(session.config, Path(asked), share, worker["workercount"])
    if os.environ.get("TRITON_INTERPRET") == "1":
        from .interpreting import make_quicker

        make_quicker()
    if not session.config.getoption("thorough"):
        draw_few()  # before tests are imported, which take the number of examples with them
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Modules and collected tests stay: to go through them, again and again, took a tenth of the time of tests.

    To look for garbage among them first would take most of a second of each process, for a tenth of what they hold.
    For that of tests it is looked at each 20,000 objects and not at each 700, which took a twentieth of their time.
    """
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def _shared_cache(base: Path) -> Path:
    """The folder of compiled kernels of all processes of a run, one of which has the temporary folder ``base``."""
    return base.parent / "kernel-registry-cache"


@pytest.fixture(autouse=True)
def _own_folders(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database is each test's own; compiled kernels are shared by the tests of one run.

    The database is in the test's folder where the test asks for one: to make a folder takes 2 ms, for thousands of
    tests that never look into it.
    """
    base = tmp_path_factory.getbasetemp()
    own = base / f"database{next(_numbers)}"
    if "tmp_path" in request.fixturenames:
        own = request.getfixturevalue("tmp_path")
    monkeypatch.setenv("KERNEL_REGISTRY_DB", str(own / "tuning.db"))
    monkeypatch.setenv("KERNEL_REGISTRY_CACHE", str(_shared_cache(base)))
    monkeypatch.setenv("KERNEL_REGISTRY_SHIPPED", "0")
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.delenv("KERNEL_REGISTRY_CHECK", raising=False)
    monkeypatch.delenv("KERNEL_REGISTRY_MISSES", raising=False)
    monkeypatch.delenv("KERNEL_REGISTRY_PROFILE", raising=False)
    monkeypatch.delenv("KERNEL_REGISTRY_RECORD", raising=False)
    monkeypatch.delenv("KERNEL_REGISTRY_STRICT", raising=False)


@pytest.fixture(scope="module", autouse=True)
def _what_a_module_leaves_stays() -> Iterator[None]:
    """Of what its tests leave garbage is collected, and the rest is not looked through again, as after the collection.

    What is imported meanwhile, torch's compiler foremost, made each full collection afterwards take a quarter second.
    """
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _one_keeper() -> Iterator[None]:
    """Children of all tests are forked from one template, which imports torch once, with the first child."""
    from registry.tuner.processes import spawning
    from registry.tuner.workers import preloading

    with spawning.kept(preloading.ENTRY, now=False):
        yield


@pytest.fixture(scope="session", autouse=True)
def _what_tests_share(tmp_path_factory: pytest.TempPathFactory) -> None:
    # a thread that compiles may go on behind its test, in folders that are not the user's
    base = tmp_path_factory.getbasetemp()
    os.environ["KERNEL_REGISTRY_CACHE"] = str(_shared_cache(base))
    os.environ["KERNEL_REGISTRY_DB"] = str(base / "tuning.db")
    compile_statements_once()
    look_for_plugins_once()
    look_at_plugins_once()


@pytest.fixture(scope="module")
def without_cpp_kernels(pytestconfig: pytest.Config) -> Iterator[None]:
    """Calls on a CPU run torch's own ops, as where there is no C++ compiler: a kernel in C++ takes it 0.5 s of a core.

    Those kernels are guarded by the tests of their plugin and of the tuner's checks. Thorough runs call them here, too.
    """
    if _asks_for_thorough(pytestconfig):
        yield
        return
    from registry.api import dispatcher

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CXX", "no-such-compiler")
        dispatcher.forget()  # what could run before the variable changed is remembered, to reload winners is not enough
        yield
    dispatcher.forget()


@pytest.fixture(scope="module")
def late_imports(request: pytest.FixtureRequest) -> None:
    """With the first test of a module is imported what the module imports for type checkers.

    That is what takes seconds, transformers foremost, and what most processes of a run need for no test.
    """
    tree = ast.parse(Path(request.module.__file__).read_text())
    for node in tree.body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            exec(compile(ast.Module(node.body, []), request.module.__file__, "exec"), vars(request.module))


@pytest.fixture
def own_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device's lock is the test's own, so that it waits for no other that measures meanwhile.

    With a cache of its own, in which nothing is compiled yet.
    """
    monkeypatch.setenv("KERNEL_REGISTRY_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def no_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only plugin files are loaded, also by the processes of a run: to load the box takes each 20 ms of a core."""
    block_plugins(monkeypatch)


def block_plugins(patch: pytest.MonkeyPatch) -> None:
    """Keep installed plugins from being loaded, in this process and in its children."""
    from importlib.metadata import entry_points

    names = {one.name for one in entry_points(group="kernel_registry")}
    patch.setenv("KERNEL_REGISTRY_BLOCK", ",".join(sorted(names)))


@pytest.fixture
def few_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Finals are held in three processes, where a run of a problem or two holds five: each costs 0.4 s of a core."""
    from registry.tuner.decide.judge import BLOCKS

    monkeypatch.setattr("registry.tuner.decide.judge.MOST_BLOCKS", BLOCKS)


@pytest.fixture
def no_programs() -> Iterator[None]:
    """A test after which torch.compile has no programs, so that they do not count for the next."""
    yield
    import torch

    torch._dynamo.reset()


@pytest.fixture
def catalog() -> Catalog:
    """A catalog of its own, with the plugins in the box."""
    from registry.discovery.catalog import Catalog

    return Catalog()


@pytest.fixture(scope="session")
def _new_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database that has its tables and nothing in them: to make these takes 8 ms of a core, to copy it less."""
    from tuning_db import Store

    path = tmp_path_factory.mktemp("new") / "tuning.db"
    with Store.open(path):
        pass
    return path


@pytest.fixture
def store(tmp_path: Path, _new_database: Path) -> Iterator[Store]:
    """An empty SQLite store."""
    from tuning_db import Store

    shutil.copy(_new_database, tmp_path / "tuning.db")
    with Store.open(tmp_path / "tuning.db") as opened:
        yield opened
