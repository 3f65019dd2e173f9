"""The process that starts, watches, kills and reaps a run's children. Run by its path, with the standard library only.

It is one file because of that, and small, so that it starts at once and never blocks on an import. It is the reaper of
all that its children leave behind (``PR_SET_CHILD_SUBREAPER``), and when the tuning process dies, however it dies, it
reads the end of its socket and takes every child along. A child is forked from a template process that has imported
torch already, or, where that is not possible, executed.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LOOK_S = 0.1
LOG_BYTES = 1 << 20
TEMPLATE = "registry.tuner.processes.template"
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_TEMPLATE_LIMIT_S = 120.0
_MESSAGE_BYTES = 1 << 20

# read when torch, Triton or the dynamic linker load: a fork would not see that they changed. Folders are read when
# they are used, and Inductor sets its own; CUDA reads its variables when the device is first used
LOADED_WITH = ("TORCH", "PYTORCH", "TRITON", "CUDA_VISIBLE", "OMP", "GOMP", "MKL", "OPENBLAS", "PYTHON", "LD_")

# imports of a template must ask NVML about the GPU: a CUDA driver does not survive a fork
_QUIET = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}


def launch(*modules: str) -> tuple[subprocess.Popen[bytes], socket.socket, str]:
    """Start a keeper; returns its process, the socket that ends it when it is closed, and the folder that it deletes.

    The folder is for temporary files of children. ``modules``, each ``module`` or ``module:function``, are imported
    (the function is called) by its template.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    temporary = _temporary_folder()
    # -I -S: only the standard library, so that it starts in tens of milliseconds and nothing can shadow it
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(theirs.fileno()), str(os.getpid()), temporary, *modules],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()], start_new_session=True,
        )  # fmt: skip
    return process, ours, temporary


@dataclass
class Kept:
    """A child: the request that started it, and the descriptors of its messages, its log and its status."""

    request: dict[str, Any]
    socket: int
    log: int
    status: int
    pid: int = 0
    killed: bool = False
    blame: str = ""  # why it was killed, reported beside the exit code
    oom_kills: int = 0

    def tell(self, **message: Any) -> None:
        with contextlib.suppress(OSError):
            os.write(self.status, json.dumps(message).encode() + b"\n")

    def close(self, *names: str) -> None:
        for name in names:
            if getattr(self, name) >= 0:
                os.close(getattr(self, name))
                setattr(self, name, -1)


@dataclass
class Template:
    """A process that forks children; ``asked`` are the requests that it has not answered."""

    socket: socket.socket
    began: float = field(default_factory=time.monotonic)
    ready: bool = False
    pid: int = 0
    asked: list[Kept] = field(default_factory=list)


class Keeper:
    """One event loop over the tuning process's socket, the templates' and SIGCHLD."""

    def __init__(self, client: socket.socket, temporary: str = "", modules: Sequence[str] = ()) -> None:
        self._client = client
        self._modules = modules
        # holds what a killed compiler leaves behind, and is deleted at the end of run()
        self._temporary = temporary
        self._selector = selectors.DefaultSelector()
        self._kept: dict[int, Kept] = {}
        self._pids: dict[int, Kept] = {}
        self._queue: list[Kept] = []
        self._unclaimed: dict[int, int] = {}
        self._templates: list[Template] = []
        self._asked: list[list[str]] = []
        self._grown = 0
        self._growing: Template | None = None
        self._missed = ""
        self._log = os.open(os.devnull, os.O_RDWR)
        self._may_fork = os.environ.get("KERNEL_REGISTRY_FORK", "1") != "0"
        self._selector.register(client, selectors.EVENT_READ, self._from_client)
        self._running = True
        self._unforked = "" if self._may_fork else "KERNEL_REGISTRY_FORK is 0"
        _wake_on_child(self._selector)
        if self._may_fork:
            self._start_template()

    def stop(self) -> None:
        """End :meth:`run`. Safe in a signal handler."""
        self._running = False

    def run(self) -> None:
        """Serve until the tuning process closes its end of the socket or dies."""
        while self._running:
            for key, _ in self._selector.select(LOOK_S):
                key.data()
            self._reap()
            self._look()
        for kept in list(self._pids.values()):
            _kill_group(kept.pid)
        for template in self._templates:
            if template.pid:
                _kill_group(template.pid)
        for _ in range(100):
            self._sweep()
            if not _reap_any():
                break
            time.sleep(0.01)
        if self._temporary:
            shutil.rmtree(self._temporary, ignore_errors=True)

    # requests

    def _from_client(self) -> None:
        message, descriptors = receive(self._client)
        if message is None:
            self._running = False
        elif message["do"] == "start":
            channel, log, status = descriptors
            if self._temporary:
                message["extra"] = {"TMPDIR": self._temporary, **message["extra"]}
            kept = Kept(message, channel, log, status)
            self._kept[message["id"]] = kept
            self._queue.append(kept)
            self._serve()
        elif message["do"] == "warm" and self._may_fork and message["modules"] not in self._asked:
            self._asked.append(message["modules"])
            self._grow()
        elif message["do"] == "kill" and message["id"] in self._kept:
            self._kill(self._kept[message["id"]])

    def _kill(self, kept: Kept, blame: str = "") -> None:
        kept.killed, kept.blame = True, kept.blame or blame
        if kept.pid:
            _kill_group(kept.pid)

    def _serve(self) -> None:
        """Start the queued children, unless a template will be ready soon."""
        waiting, self._queue = self._queue, []
        for kept in waiting:
            template = self._templates[0] if self._templates else None
            if template is None or not _may_fork(kept.request):
                self._execute(kept)
            elif template.ready:
                self._fork(template, kept)
            else:
                self._queue.append(kept)

    def _execute(self, kept: Kept) -> None:
        request = kept.request
        if request["module"] == TEMPLATE:
            kept.close("socket", "log", "status")
            return
        words = request["module"], str(kept.socket), str(os.getpid()), *request["arguments"]
        try:
            process = subprocess.Popen(
                [request["python"], "-m", *words],
                stdin=subprocess.DEVNULL, stdout=kept.log, stderr=kept.log, pass_fds=[kept.socket],
                start_new_session=True, cwd=request["folder"], env={**request["environment"], **request["extra"]},
            )  # fmt: skip
        except OSError as fault:
            kept.tell(pid=0, how=str(fault))
            kept.blame = f"it could not be started: {fault}"
            self._ended(kept)
            return
        process.returncode = 0  # reaped here, not by its finaliser
        self._began(kept, process.pid, f"executed ({self._unforked})" if self._unforked else "executed")

    def _began(self, kept: Kept, pid: int, how: str) -> None:
        kept.pid, kept.oom_kills = pid, _oom_kills()
        if kept.request["module"] == TEMPLATE and self._growing is not None:
            self._growing.pid = pid
        kept.close("socket")
        # should the machine run out of memory, the kernel must kill this process and not the tuning process
        with contextlib.suppress(OSError):
            Path(f"/proc/{pid}/oom_score_adj").write_text("600")
        kept.tell(pid=pid, how=how)
        self._pids[pid] = kept
        if kept.killed:
            _kill_group(pid)
        if pid in self._unclaimed:
            self._finish(kept, self._unclaimed.pop(pid))

    # templates

    def _start_template(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", TEMPLATE, str(theirs.fileno()), str(os.getpid()), *self._modules],
                stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], start_new_session=True,
                env={**os.environ, **_QUIET},
            )  # fmt: skip
        process.returncode = 0
        template = Template(ours, pid=process.pid)
        self._templates.append(template)
        self._selector.register(ours, selectors.EVENT_READ, lambda: self._from_template(template))

    def _grow(self) -> None:
        """Fork a template from the latest, which imports the modules that are wanted next, and takes over when ready.

        One after another, so that what cannot be imported, or is unsound, costs nothing of what was wanted before.
        """
        if self._growing is not None or self._grown == len(self._asked) or not self._templates:
            return
        modules = self._asked[self._grown]
        self._grown += 1
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        request = {"id": -1, "module": TEMPLATE, "arguments": modules, "environment": dict(os.environ), "extra": {},
                   "folder": "/", "memory_bytes": 0}  # fmt: skip
        kept = Kept(request, os.dup(theirs.fileno()), os.dup(self._log), os.dup(self._log))
        theirs.close()
        template = self._growing = Template(ours)
        self._queue.append(kept)
        self._selector.register(ours, selectors.EVENT_READ, lambda: self._from_template(template))
        self._serve()

    def _fork(self, template: Template, kept: Kept) -> None:
        with contextlib.suppress(OSError):
            template.asked.append(kept)
            send(template.socket, {**kept.request, "keeper": os.getpid()}, [kept.socket, kept.log])
        # the end of a template is noticed when its socket is read; children that it was asked for are then executed

    def _from_template(self, template: Template) -> None:
        message, _ = receive(template.socket)
        if message is None or "unsound" in message:
            self._lose(template, message["unsound"] if message else "it died")
        elif "ready" in message:
            template.ready = True
            if template not in self._templates:
                self._templates.insert(0, template)
            self._go_on_growing(template)
        elif "forked" in message:
            kept = template.asked.pop(0)
            if message["forked"]:
                self._began(kept, message["forked"], f"forked{self._missed}")
            else:
                self._execute(kept)
            if not any(each.asked for each in self._templates):
                self._unclaimed.clear()
        self._serve()

    def _lose(self, template: Template, why: str) -> None:
        if template is not self._growing and self._templates in ([], [template]):
            self._unforked = f"no template to fork: {why}"
        self._selector.unregister(template.socket)
        template.socket.close()
        if template in self._templates:
            self._templates.remove(template)
        if template.pid:
            _kill_group(template.pid)
        asked, template.asked = template.asked, []
        for kept in asked:
            self._execute(kept)
        if template is self._growing:
            self._missed = f" without all that was to be imported: {why}"
        self._go_on_growing(template)

    def _go_on_growing(self, template: Template) -> None:
        """Go on with what is wanted next, if the template was the one that was growing."""
        if template is self._growing:
            self._growing = None
            self._grow()

    # ends

    def _reap(self) -> None:
        """Reap every child that has ended, and kill its group before its process id can be used again."""
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if found is None:
                return
            kept = self._pids.pop(found.si_pid, None)
            if kept is not None:
                _kill_group(found.si_pid)
            code = os.waitstatus_to_exitcode(os.waitpid(found.si_pid, 0)[1])
            if kept is not None:
                self._finish(kept, code)
            elif any(template.asked for template in self._templates):
                self._unclaimed[found.si_pid] = code

    def _finish(self, kept: Kept, code: int) -> None:
        self._pids.pop(kept.pid, None)
        self._sweep()
        if not kept.killed and code == -signal.SIGKILL and _oom_kills() > kept.oom_kills:
            kept.blame = "the system had no memory left and killed it"
        self._ended(kept, code, out_of_memory=bool(kept.blame))

    def _ended(self, kept: Kept, code: int = 1, *, out_of_memory: bool = False) -> None:
        self._kept.pop(kept.request["id"], None)
        kept.tell(ended=code, why=kept.blame, out_of_memory=out_of_memory)
        kept.close("socket", "log", "status")

    def _sweep(self) -> None:
        """Kill processes that children have left behind: their parent is this process now."""
        if any(template.asked for template in self._templates):
            return  # one of the unknown may be the child that is being forked
        known = {*self._pids, *(template.pid for template in self._templates)}
        for pid in _children():
            if pid not in known:
                _kill_group(pid)

    def _look(self) -> None:
        """Check for orphans, limits of memory and logs, and templates that do not start."""
        self._sweep()
        for kept in self._pids.values():
            with contextlib.suppress(OSError):
                if os.fstat(kept.log).st_size > LOG_BYTES:
                    os.ftruncate(kept.log, 0)
            most = kept.request["memory_bytes"]
            held = resident_bytes(kept.pid) if most else 0
            if held > most:
                self._kill(kept, f"it held {held / 2**30:.2f} GiB of memory; its limit is {most / 2**30:.2f} GiB")
        for template in [*self._templates, *([self._growing] if self._growing else [])]:
            if not template.ready and time.monotonic() - template.began > _TEMPLATE_LIMIT_S:
                self._lose(template, f"it did not start within {_TEMPLATE_LIMIT_S:.0f} s")
                self._serve()


def resident_bytes(pid: int) -> int:
    """Bytes of anonymous and shared memory of a process, which cannot be reclaimed; code and files do not count."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    return sum(int(fields[name].split()[0]) * 1024 for name in ("RssAnon", "RssShmem") if name in fields)


def send(to: socket.socket, message: dict[str, Any], descriptors: list[int]) -> None:
    """Send one datagram, with descriptors."""
    socket.send_fds(to, [json.dumps(message).encode()], descriptors)


def receive(source: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """One datagram and its descriptors; no message when the other end is gone."""
    try:
        data, descriptors, _, _ = socket.recv_fds(source, _MESSAGE_BYTES, 4, socket.MSG_CMSG_CLOEXEC)
    except OSError:
        return None, []
    return (json.loads(data) if data else None), list(descriptors)


def _may_fork(request: dict[str, Any]) -> bool:
    given = request["environment"]
    names = {name for name in {*given, *os.environ} if name.startswith(LOADED_WITH) and not name.endswith("_DIR")}
    return not request.get("fresh") and all(given.get(name) == os.environ.get(name) for name in names)


def _temporary_folder() -> str:
    """A new folder for temporary files; "" where none can be made, so that children use the system's."""
    try:
        return tempfile.mkdtemp(prefix="kernel-registry-")
    except OSError:
        return ""


def _kill_group(pid: int) -> None:
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def _children() -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
    except OSError:
        return []


def _reap_any() -> bool:
    """Reap the children that have ended; returns whether a child is left."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _oom_kills() -> int:
    for path in ("/sys/fs/cgroup/memory.events", "/proc/vmstat"):
        with contextlib.suppress(OSError):
            for line in Path(path).read_text().splitlines():
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    return 0


def _wake_on_child(selector: selectors.BaseSelector) -> None:
    ours, theirs = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(theirs, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    selector.register(ours, selectors.EVENT_READ, lambda: os.read(ours, 4096))


def main() -> None:
    """``keeper.py SOCKET PARENT FOLDER [MODULE[:FUNCTION] ...]``."""
    import resource  # Windows has none, and imports this module too

    descriptor, parent = int(sys.argv[1]), int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))  # crashes are expected
    library = ctypes.CDLL(None, use_errno=True)
    library.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    keeper = Keeper(socket.socket(fileno=descriptor), sys.argv[3], sys.argv[4:])

    def perhaps_orphaned(*_: object) -> None:
        # also sent when only the thread that started this process has ended
        if os.getppid() != parent:
            keeper.stop()

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, perhaps_orphaned)
    library.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    perhaps_orphaned()  # the parent may have died before this was asked for
    keeper.run()


if __name__ == "__main__":
    main()
