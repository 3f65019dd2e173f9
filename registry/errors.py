"""The exceptions of this package. Each message has the given and the expected value and, as ``hint``, the next step."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable

from .untrusted.visible import visible


class RegistryError(Exception):
    """Base of every error this package raises on purpose.

    ``message`` is one line; ``hint``, when there is one, is the next thing to try.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        message, hint = visible(message), visible(hint)
        super().__init__(message if not hint else f"{message}\n  {hint}")
        self.message = message
        self.hint = hint


def in_a_line(fault: BaseException) -> str:
    """The type of an exception and the first line of its message: ``ValueError: no such size``."""
    lines = str(fault).strip().splitlines()
    return f"{type(fault).__name__}: {lines[0] if lines else 'no message'}"


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """``did you mean tanh?`` with up to three similar names, none much less similar than the first; "" if none is."""
    near = difflib.get_close_matches(name, sorted(names), n=3, cutoff=0.5)
    likeness = [difflib.SequenceMatcher(None, other, name).ratio() for other in near]
    likely = [other for other, alike in zip(near, likeness, strict=True) if alike > likeness[0] - 0.25]
    return f"did you mean {' or '.join(likely)}?" if likely else ""


_MOST_NAMES = 80
"""The most known names that a message lists: more than there are ops, fewer than a library has functions."""


class UnknownNameError(RegistryError, LookupError):
    """The name of an op, implementation, dimension or attribute that does not exist; ``context`` says of what.

    ``remedy`` is told behind near names, or in the place of all that are known.
    """

    def __init__(self, kind: str, name: str, known: Iterable[str], context: str = "", remedy: str = "") -> None:
        names = sorted(known)
        hint = did_you_mean(name, names) if isinstance(name, str) else ""
        more = len(names) - _MOST_NAMES
        shown = ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
        hint = " ".join(filter(None, (hint, remedy))) or f"known: {shown or 'none'}"
        super().__init__(f"unknown {kind} {name!r}{context and f' {context}'}", hint=hint)
        self.kind = kind
        self.name = name


def unknown_op(name: str, known: Collection[str]) -> UnknownNameError:
    """The error for an op that nobody defines, with the nearest names, or with how the op of a plugin comes in."""
    vendor, found, _ = str(name).partition("::")
    remedy = (
        f"is the plugin of {vendor} installed, or its file named by --plugin or registry.load_file()?"
        " `registry plugins` lists what is loaded"
    )
    if not found and (owned := sorted(other for other in known if other.endswith(f"::{name}"))):
        remedy = f"of plugins there {'is' if len(owned) == 1 else 'are'} {', '.join(owned)}"
        return UnknownNameError("op", name, (), remedy=remedy)
    absent = found and not any(other.startswith(f"{vendor}::") for other in known)
    return UnknownNameError("op", name, known, remedy=remedy if absent else "")


class InvalidArgumentError(RegistryError, ValueError):
    """A call whose arguments the op does not accept: rank, dtype, device, shape, attribute."""


class OutOfRangeError(InvalidArgumentError, IndexError):
    """A tensor with a value outside of its range, such as an index beyond a table's end.

    Values are on the device and are not read: only ``KERNEL_REGISTRY_CHECK=1`` lets a call wait for them.
    """


class ArgumentTypeError(InvalidArgumentError, TypeError):
    """A call of the wrong form: an argument too many, missing, unknown or of another type than the schema says."""


class InvalidDefinitionError(RegistryError, TypeError):
    """An op or implementation that breaks the contract; raised when it is registered."""


class MisnamedError(UnknownNameError, InvalidDefinitionError):
    """A launch or a space that names an argument, option, constant or parameter that does not exist."""


class WrongAnswerError(InvalidDefinitionError):
    """An implementation whose answer about itself is of the wrong type, such as a preference that is no number."""


class PluginError(RegistryError):
    """A plugin file that could not be loaded, or an installed plugin's fault under ``KERNEL_REGISTRY_STRICT=1``."""


class UnsupportedError(RegistryError):
    """A forced implementation that cannot run this problem; the message holds every reason."""


class NotLaunchedError(UnsupportedError):
    """An implementation that found, when it was called, that it cannot run these tensors. Nothing was enqueued."""


class CompileError(RegistryError):
    """A variant that its compiler refused; the message holds the compiler's first lines."""


class OutOfResourcesError(CompileError):
    """A kernel that exceeds a limit.

    The kernel or its grid exceeds the device (registers, shared memory, blocks), or the process has loaded the most
    kernels that it may.
    """


class CacheError(CompileError):
    """A cache of compiled code that cannot be used: it is another user's, full, or holds a damaged file.

    This says nothing about the code that was to be compiled.
    """


class NotReadyError(RegistryError):
    """A plan or a prepared weight that may not be made at this moment, e.g. during capture. Nothing was enqueued."""


class DeviceError(RegistryError):
    """A device that does not exist, or arguments that are on several devices."""


class ShapesFileError(RegistryError):
    """A shapes file that cannot be read: the message holds file, line, key and the expected value."""


class NotTunedError(RegistryError, LookupError):
    """A call of a problem without a winner while ``registry.configure(mode="strict")`` asks for one."""


class StoreError(RegistryError):
    """A tuning database that cannot be opened, read or written."""


class FleetVersionError(RegistryError):
    """A node whose versions of torch, Triton or plugins are not those of the fleet; the message names each."""


class ReleaseError(StoreError):
    """A release that cannot be found, read or made, or ranks of a job that do not run the same one."""


class SandboxError(RegistryError):
    """A sandbox that cannot be made on this machine: bubblewrap is missing, or may not make a namespace."""


class CheckError(RegistryError, AssertionError):
    """An op or implementation that failed ``registry.testing``; the message lists every failure."""
