"""Children as processes: how they start, what they are given, how they end, and that nothing of them is left."""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from registry.tuner.processes import keeper as keeper_module
from registry.tuner.processes import spawning, template
from registry.tuner.processes.process import Child

from ... import fresh

ECHO = "echoing"
linux = pytest.mark.skipif(sys.platform != "linux", reason="the keeper needs Linux")


def write_echo(folder: Path, body: str) -> None:
    """A module for children. One that is executed does without torch, which nothing here needs."""
    (folder / f"{ECHO}.py").write_text(
        f"{fresh.BARE}"
        "import os, signal, sys, time\n"
        "from pathlib import Path\n"
        "from registry.tuner.processes.process import Parent\n"
        "def main(arguments):\n"
        "    parent = Parent(int(arguments[0]), int(arguments[1]))\n"
        f"    arguments = arguments[2:]\n    {body}\n"
        "if __name__ == '__main__':\n    main(sys.argv[1:])\n"
    )


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Child]]:
    """Starts children that do what a line of Python says, with ``parent`` and ``arguments`` at hand."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    started: list[Child] = []

    def run(body: str, *arguments: str, **options: Any) -> Child:
        write_echo(tmp_path, body)
        started.append(Child(ECHO, arguments, **options))
        return started[-1]

    yield run
    for child in started:
        child.stop()


def answers(child: Child, count: int = 1) -> list[Any]:
    found: list[Any] = []
    there = True
    while there and len(found) < count:
        select.select([child], [], [], 60)
        messages, there = child.receive()
        found += messages
    return found


def gone(pid: int) -> bool:
    """Waits until a process that is not ours to reap has vanished."""
    for _ in range(3000):
        if not Path(f"/proc/{pid}").exists():
            return True
        time.sleep(0.01)
    return False


WAYS = pytest.mark.parametrize("fresh", [pytest.param(False, id="forked"), pytest.param(True, id="executed")])


@linux
@WAYS
def test_a_child_has_the_parents_folder_and_variables_and_a_group_of_its_own(
    start: Callable[..., Child], fresh: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAID", "today")
    body = (
        "parent.send({'pid': os.getpid(), 'group': os.getpgid(0), 'session': os.getsid(0), 'said': os.environ['SAID'],"
        " 'extra': os.environ['EXTRA'], 'folder': os.getcwd(), 'arguments': arguments, 'forked': 'template' in"
        " ' '.join(sys.orig_argv), 'pool': os.environ['TORCHINDUCTOR_COMPILE_THREADS']})"
    )
    child = start(body, "one", "two", environment={"EXTRA": "more"}, fresh=fresh)
    (answer,) = answers(child)
    assert answer["pid"] == answer["group"] == answer["session"] == child.pid
    assert (answer["said"], answer["extra"], answer["folder"]) == ("today", "more", str(tmp_path))
    assert answer["arguments"] == ["one", "two"]
    assert answer["pool"] == "1", "a pool of compilers for each child would take all cores"
    assert answer["forked"] is not fresh
    ending = child.end(30)
    assert (ending.code, ending.why) == (0, "exit code 0")


@linux
def test_a_process_with_threads_is_no_template() -> None:
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    assert "threads" in template.unsound()
    done.set()
    thread.join()


FORBIDDEN = f"""{fresh.BARE}
from registry.tuner.processes import spawning
from registry.tuner.processes.process import Child
with spawning.kept():
    child = Child("registry.tuner.workers.compile_worker")
    print(child.how)
    child.stop()
"""


@linux
def test_forking_can_be_forbidden() -> None:
    variables = {**os.environ, "KERNEL_REGISTRY_FORK": "0"}
    done = subprocess.run([sys.executable, "-c", FORBIDDEN], capture_output=True, text=True, check=False, env=variables)
    assert (done.stderr, done.stdout) == ("", "executed (KERNEL_REGISTRY_FORK is 0)\n")


@linux
def test_what_a_fork_would_not_notice_is_executed(start: Callable[..., Child], monkeypatch: pytest.MonkeyPatch) -> None:
    told = "parent.send({'forked': 'template' in ' '.join(sys.orig_argv)})"
    answers(start(told))  # the template is one of this environment, whichever test comes first
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert answers(start(told)) == [{"forked": False}]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("os._exit(7)", "exit code 7"),
        ("raise SystemExit(5)", "exit code 5"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
        ("print('last words', flush=True); os.abort()", "SIGABRT: last words"),
        ("raise ValueError('a fault')", "ValueError: a fault"),
    ],
)
def test_an_end_is_told_with_the_last_words(start: Callable[..., Child], body: str, why: str) -> None:
    child = start(body)
    assert answers(child) == []
    assert why in child.end(30).why


@pytest.mark.parametrize("line", ["nonsense", "[1]", '{"half": '])
def test_what_is_no_message_ends_the_conversation(start: Callable[..., Child], line: str) -> None:
    child = start(f"parent._socket.sendall({line!r}.encode() + b'\\n'); time.sleep(3600)")
    assert answers(child) == []
    assert "no message" in child.end().why


def test_a_message_that_nobody_reads_does_not_block_the_sender(start: Callable[..., Child]) -> None:
    child = start(
        "parent.send({}); sys.stdin.read(); time.sleep(1); parent.send({'size': len(next(iter(parent))['x'])})"
    )
    assert answers(child) == [{}]
    child.send({"x": "x" * 4_000_000})
    assert child.has_unsent
    found: list[Any] = []
    while not found:
        _, writable, _ = select.select([], [child] if child.has_unsent else [], [], 0.05)
        if writable:
            child.flush()
        found, _ = child.receive()
    assert found == [{"size": 4_000_000}]


@linux
@WAYS
def test_whatever_a_child_started_is_killed_with_it(start: Callable[..., Child], fresh: bool) -> None:
    body = (
        "first = os.fork()\n"
        "    if first == 0: time.sleep(3600)\n"
        "    reader, writer = os.pipe()\n"
        "    if os.fork() == 0:\n"
        "        second = os.fork()\n"
        "        if second == 0: os.setsid(); time.sleep(3600)\n"
        "        os.write(writer, str(second).encode()); os._exit(0)\n"
        "    os.wait()\n"
        "    parent.send({'left': [first, int(os.read(reader, 20))]}); time.sleep(3600)"
    )
    child = start(body, fresh=fresh)
    (answer,) = answers(child)
    assert child.stop()
    assert all(gone(pid) for pid in [*answer["left"], child.pid])


@linux
def test_children_started_later_find_imported_what_was_asked_for(start: Callable[..., Child]) -> None:
    spawning.warm("wave", "mimetypes:init")
    told = "{'imported': 'wave' in sys.modules, 'called': mimetypes.inited, 'torch': 'torch' in sys.modules}"
    until = time.monotonic() + 60
    answer: dict[str, object] = {}
    while not answer.get("imported") and time.monotonic() < until:
        child = start(f"import mimetypes; parent.send({told})")
        (answer,) = answers(child)
        child.stop()
        time.sleep(0.2)  # what imports meanwhile wants the cores
    assert answer == {"imported": True, "called": True, "torch": True}


@linux
def test_what_cannot_be_imported_leaves_children_all_else_that_was_asked_for(start: Callable[..., Child]) -> None:
    spawning.warm("wave")
    spawning.warm("no_such_module")
    spawning.warm("quopri")
    until = time.monotonic() + 60
    found: tuple[object, str] = (None, "")
    why = "no_such_module: ModuleNotFoundError: No module named 'no_such_module'"
    wanted = ({"imported": True}, f"forked without all that was to be imported: {why}")
    while found != wanted and time.monotonic() < until:
        child = start("parent.send({'imported': 'wave' in sys.modules and 'quopri' in sys.modules})")
        (answer,) = answers(child)
        found = (answer, child.how)
        child.stop()
        time.sleep(0.2)
    assert found == wanted


@linux
def test_what_was_asked_for_before_is_imported_once(start: Callable[..., Child]) -> None:
    name = "colorsys"
    for _ in range(3):
        spawning.warm(name)
    until, imported = time.monotonic() + 60, False
    while not imported and time.monotonic() < until:
        child = start(f"parent.send({{'imported': {name!r} in sys.modules}})")
        (answer,) = answers(child)
        imported = answer["imported"]
        child.stop()
        time.sleep(0.2)
    keeper = spawning._keeper().pid
    before = children(keeper)
    for _ in range(3):
        spawning.warm(name)
    answers(start("parent.send({})"))
    assert len(children(keeper)) <= len(before) + 1, "the child, and no template"


@linux
@pytest.mark.thorough
def test_memory_beyond_the_limit_ends_a_child(start: Callable[..., Child]) -> None:
    child = start("held = [bytearray(64 << 20) for _ in range(40)]; time.sleep(3600)", memory_bytes=1 << 30)
    assert answers(child) == []
    ending = child.end(30)
    assert ending.out_of_memory
    assert "its limit is 1.00 GiB" in ending.why


@linux
def test_megabytes_of_output_stay_kilobytes(start: Callable[..., Child]) -> None:
    child = start("[os.write(1, b'x' * 65536) for _ in range(1600)]; parent.send({}); time.sleep(3600)")
    assert answers(child) == [{}]
    for _ in range(200):
        size = os.fstat(child._log.fileno()).st_size
        if size < 2 << 20:
            break
        time.sleep(0.05)
    assert size < 2 << 20


TUNING = f"""{fresh.BARE}
import time
from registry.tuner.processes import spawning
from registry.tuner.processes.process import Child

def started(**options):
    child = Child("{ECHO}", **options)
    while not child.receive()[0]:
        time.sleep(0.01)
    print(child.pid, spawning._keeper().pid, child.how, flush=True)
    return child

with spawning.kept():
    child = started()
    input()
    print(child.end(30).why, flush=True)
    again = started(fresh=True)
    time.sleep(3600)
"""


@linux
@pytest.mark.thorough
def test_a_killed_keeper_is_replaced_and_a_killed_parent_takes_everything_along(tmp_path: Path) -> None:
    write_echo(tmp_path, "parent.send({'here': True}); time.sleep(3600)")
    command = [sys.executable, "-c", TUNING]
    with subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        child, keeper, how = process.stdout.readline().split()
        assert how == "forked"
        os.kill(int(keeper), signal.SIGKILL)
        assert gone(int(child))
        process.stdin.write("\n")
        process.stdin.flush()
        assert "kept it died" in process.stdout.readline()
        again, other, how = process.stdout.readline().split()
        assert how == "executed"
        assert other != keeper
        template = children(int(other)) - {int(again)}
        assert len(template) == 1
        process.kill()
    assert all(gone(pid) for pid in [int(again), int(other), *template])


def children(pid: int) -> set[int]:
    return set(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


COMPILING = (
    "import subprocess, tempfile\n"
    "    folder = Path(tempfile.gettempdir())\n"
    "    subprocess.Popen(['c++', '-x', 'c++', '-c', '-', '-o', '/dev/null'], stdin=subprocess.PIPE)\n"
    "    while not list(folder.glob('cc*')): time.sleep(0.01)\n"
    "    parent.send({'left': [str(path) for path in folder.glob('cc*')]}); time.sleep(3600)"
)
KILLED = f"""{fresh.BARE}
import os, signal, sys, time
from registry.tuner.processes import spawning
from registry.tuner.processes.process import Child

with spawning.kept():
    child = Child("{ECHO}", fresh=sys.argv[1] == "True")
    while not (messages := child.receive()[0]):
        time.sleep(0.01)
    print(*messages[0]["left"], flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@linux
@pytest.mark.parametrize(
    "fresh", [pytest.param(False, id="forked", marks=pytest.mark.thorough), pytest.param(True, id="executed")]
)
@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
def test_temporary_files_of_a_killed_compiler_are_removed(tmp_path: Path, fresh: bool) -> None:
    write_echo(tmp_path, COMPILING)
    command = [sys.executable, "-c", KILLED, str(fresh)]
    done = subprocess.run(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, check=False, timeout=200)
    assert done.returncode == -signal.SIGKILL
    (left,) = {Path(name).parent for name in done.stdout.split()}
    assert left.name.startswith("kernel-registry-")
    for _ in range(3000):
        if not left.exists():
            break
        time.sleep(0.01)
    assert not left.exists()


@linux
def test_a_killed_keeper_leaves_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNEL_REGISTRY_FORK", "0")
    launched = keeper_module.launch()
    client, folder = spawning.KeeperClient(launched), launched[2]
    assert Path(folder).is_dir()
    os.kill(client.pid, signal.SIGKILL)
    client.close()
    assert not Path(folder).exists()


@linux
def test_a_keeper_whose_parent_died_before_it_was_ready_ends_and_leaves_no_folder(tmp_path: Path) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    absent = os.getppid()  # any process but this one
    command = [
        sys.executable,
        "-I",
        "-S",
        keeper_module.__file__,
        str(theirs.fileno()),
        str(absent),
        tmp_path / "temporary",
    ]
    with ours, theirs:
        environment = {**os.environ, "KERNEL_REGISTRY_FORK": "0"}
        done = subprocess.run(command, pass_fds=[theirs.fileno()], check=False, timeout=100, env=environment)
    assert done.returncode == 0
    assert not folder.exists()
