"""Running a command: options parsed by typer, faults printed as one line and a hint, exit codes."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import warnings
from typing import Any, NoReturn

import typer

from kernel_registry import hear_no_more, open_streams
from tuning_db import TuningDBError

from ..errors import RegistryError
from ..untrusted.visible import visible

FAULT = 1
BAD_INPUT = 2
INTERRUPTED = 130
BROKEN_PIPE = 141

_ClickFault: Any = typer.BadParameter.__mro__[2]
"""ClickException: newer releases of typer define it themselves, older ones take it from click."""


_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


class ToldCode(int):
    """The exit code of a command that has printed its reason."""


def new_app(help_text: str) -> typer.Typer:
    """A typer application whose help is plain text, identical in a terminal, a pipe and the docs."""
    return typer.Typer(
        help=help_text,
        rich_markup_mode=None,
        add_completion=False,
        pretty_exceptions_enable=False,
        no_args_is_help=False,
        context_settings={"help_option_names": ["--help", "-h"]},
    )


def run(app: typer.Typer, program: str, arguments: list[str] | None = None) -> int:
    """Runs a command; returns its exit code: 2 for a user's mistake, which is printed as a line and a hint."""
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            code = app(args=arguments, prog_name=program, standalone_mode=False) or 0
        if code == INTERRUPTED and not isinstance(code, ToldCode):
            raise KeyboardInterrupt  # typer has made an exit code of it
        sys.stdout.flush()
        return code
    except _ClickFault as fault:
        context = getattr(fault, "ctx", None)
        command = context.command_path if context else program
        # newer releases of typer check options by pydantic, whose prefix tells users nothing
        return _report(program, fault.format_message().replace("Value error, ", ""), f"see {command} --help")
    except (RegistryError, TuningDBError) as fault:
        return _report(program, fault.message, fault.hint)
    except (KeyboardInterrupt, typer.Abort):
        _tell(f"{program}: interrupted")
        return INTERRUPTED
    except (BrokenPipeError, SystemExit) as fault:
        # the reader has gone (`registry results | head`), of which typer makes an exit
        if not isinstance(fault if isinstance(fault, OSError) else fault.__context__, BrokenPipeError):
            raise
        _drop_output()
        return BROKEN_PIPE
    except OSError as fault:
        return _report_of_machine(program, fault)


def run_to_the_end(app: typer.Typer, program: str) -> NoReturn:
    """:func:`run`, then end the process with its exit code; further Ctrl-C are ignored during that."""
    open_streams()
    try:
        code = run(app, program)
    except KeyboardInterrupt:  # a second one, while the first was being told
        code = INTERRUPTED
    hear_no_more()
    sys.exit(code)


def _report(program: str, message: str, hint: str) -> int:
    text = f"{program}: {' '.join(message.split())}"
    _tell(text + (f"\n  {hint}" if hint else ""))
    return BAD_INPUT


def _report_of_machine(program: str, fault: OSError) -> int:
    """Reports a file that cannot be opened, or a disk that is full. Raises any other fault."""
    if fault.filename is not None and fault.strerror is not None:
        return _report(program, f"{os.fsdecode(fault.filename)}: {fault.strerror}", "")
    if fault.errno not in _NO_ROOM:
        raise fault
    _report(program, f"a file or the output cannot be written: {fault.strerror}", "it is not complete")
    _drop_output()
    return FAULT


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    _tell(f"warning: {message}")


def _tell(text: str) -> None:
    with contextlib.suppress(OSError):  # nobody can be told where stderr is a full disk
        sys.stderr.write(f"{visible(text)}\n")


def _drop_output() -> None:
    """Lets what stdout still holds go nowhere: the interpreter's own flush at exit would tell of its fault."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
