"""Starting bubblewrap: its arguments in a file, its filter of system calls, its control group, its first process."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import time
from collections.abc import Mapping, Sequence

from .control_group import ControlGroup
from .system_calls import filter_program

_START_S = 20.0


def settings(environment: Mapping[str, str]) -> list[str]:
    """Arguments of bwrap that set these variables."""
    return [part for name, value in environment.items() for part in ("--setenv", name, value)]


def started(
    program: str,
    arguments: Sequence[str],
    inside: Sequence[str],
    channel: int,
    output: int,
    group: ControlGroup | None,
) -> tuple[subprocess.Popen[bytes], int]:
    """The process, and the number of the first process of its namespace, 0 if there was none."""
    # arguments come from a file: inside, the command line of the namespace's first process can be read
    held = _file(b"".join(part.encode() + b"\0" for part in arguments))
    calls = _file(filter_program())
    reads, info = os.pipe()
    try:
        command = [program, "--args", str(held), "--info-fd", str(info)]
        command += [*(("--seccomp", str(calls)) if filter_program() else ()), "--", *inside]
        if group is not None:
            command = group.command(command)
        process = subprocess.Popen(
            command,
            # what is inside begins with no variable at all: bwrap clears them
            env={} if group is None else dict(group.environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=(channel, held, calls, info),
        )
        os.close(info)
        info = -1
        return process, _first_process(process, reads)
    finally:
        for descriptor in (held, calls, reads, info):
            if descriptor >= 0:
                os.close(descriptor)


def _file(content: bytes) -> int:
    """A descriptor of an anonymous file, to be read from its beginning."""
    made = os.memfd_create("sandbox")
    os.write(made, content)
    os.lseek(made, 0, os.SEEK_SET)
    return made


def _first_process(process: subprocess.Popen[bytes], info: int) -> int:
    poll, data = select.poll(), b""
    poll.register(info, select.POLLIN)
    until = time.monotonic() + _START_S
    while (left := until - time.monotonic()) > 0 and poll.poll(left * 1e3):
        more = os.read(info, 4096)
        data += more
        if not more or b"}" in data:
            break
    with contextlib.suppress(ValueError, KeyError):
        return int(json.loads(data)["child-pid"])
    process.kill()
    process.wait()
    return 0
