"""The checks of ``registry doctor``, one function each. A check uses the thing (compiles, loads, opens) itself."""

from __future__ import annotations

import importlib.util
import platform
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuning_db import MissingDatabaseError, TuningDBError

from ..errors import RegistryError
from .display import text
from .stored import prepared_limit

OK, ABSENT, FAULT = "ok", "absent", "fault"

_OPENMP = """
#include <omp.h>
extern "C" int threads() { return omp_get_max_threads(); }
"""

# what pip, uv and setuptools write for the entry point kernel_registry:tune
_OUR_SCRIPT = re.compile(r"^\s*(?:from|import) kernel_registry\b|kernel_registry:tune", re.MULTILINE)

_CUDA = 'extern "C" __global__ void one(float* y) { *y = ONE; }'


@dataclass(frozen=True)
class Check:
    """One line of the report: ``state`` is ``ok``, ``absent`` (not needed, not there) or ``fault``."""

    name: str
    state: str
    found: str
    advice: str = ""


def checks(database: str | None) -> Iterator[Check]:
    """The checks, each made when the iterator reaches it, from the most general to the most special."""
    yield Check("python", OK, f"{platform.python_version()} at {sys.executable}")
    yield torch_check()
    yield gpu_check()
    yield triton_check()
    yield nvrtc_check()
    yield compiler_check()
    yield cache_check()
    yield database_check(database)
    yield from release_check(database)
    yield shipped_check()
    yield prepared_check()
    yield from plugin_checks()
    yield shadow_check(Path.cwd())
    yield script_check()


def torch_check() -> Check:
    """PyTorch's version, and the CUDA or ROCm it was built for."""
    import torch

    versions = {"CUDA": torch.version.cuda, "HIP": torch.version.hip}
    built = next((f"{name} {version}" for name, version in versions.items() if version), "CPU")
    return Check("torch", OK, f"{torch.__version__}, built for {built}")


def gpu_check() -> Check:
    """The GPUs that torch can use, and the driver."""
    import torch

    from ..device import Device

    if devices := Device.visible():
        names = ", ".join(f"{device} with {device.memory_bytes / 2**30:.0f} GiB" for device in devices)
        return Check("gpu", OK, f"{names}; driver {devices[0].software()['driver'] or 'unknown'}")
    if shutil.which("nvidia-smi") and (fault := _output(["nvidia-smi", "-L"])) and "GPU" in fault:
        other_build = "install a torch built for CUDA and as old as this driver"
        advice = "update the driver" if torch.version.cuda else other_build
        return Check("gpu", FAULT, f"there is one, but torch cannot use it ({fault.splitlines()[0]})", advice)
    return Check("gpu", ABSENT, "none; everything runs on the CPU")


def triton_check() -> Check:
    """Triton's version; it must import, a launch is not tried."""
    from ..device import installed_version

    version = installed_version("triton")
    if not version:
        return Check("triton", ABSENT, "not installed: no triton.* implementations", "pip install triton (Linux)")
    if fault := _import_fault("triton"):
        return Check("triton", FAULT, f"{version} does not import: {fault}", "reinstall the triton that torch asks for")
    return Check("triton", OK, version)


def nvrtc_check() -> Check:
    """A CUDA kernel compiled through NVRTC, as the cuda.* implementations are."""
    from ..backends.cuda import nvrtc

    if reason := nvrtc.missing():
        return Check("nvrtc", ABSENT, f"{reason.partition(' (')[0]}: no cuda.* implementations", nvrtc.INSTALL_HINT)
    try:
        nvrtc.compile_source(nvrtc.Source(_CUDA, "one", {"ONE": 1.0}, "sm_90"))
    except RegistryError as fault:
        return Check("nvrtc", FAULT, f"NVRTC {nvrtc.version()} cannot compile: {_line(fault)}", nvrtc.INSTALL_HINT)
    return Check("nvrtc", OK, f"NVRTC {nvrtc.version()} compiles for sm_90")


def compiler_check() -> Check:
    """The C++ compiler with OpenMP, which the cpp.* implementations need."""
    from ..backends.cpp.compiler import NoCompiler, build, find_compiler

    found = find_compiler()
    if isinstance(found, NoCompiler):
        return Check("compiler", ABSENT, f"{found.reason}: no cpp.* implementations")
    command = " ".join(found.command)
    try:
        build(_OPENMP, (), "doctor")
    except RegistryError as fault:
        advice = "install its C++ library, or set CXX"
        return Check("compiler", FAULT, f"{command} cannot compile: {_line(fault)}", advice)
    version = _output([*found.command, "--version"]).partition("\n")[0]
    return Check("compiler", OK, f"{version}, with OpenMP")


def cache_check() -> Check:
    """The folder of compiled kernels."""
    from ..paths import cache_folder, check_room

    try:
        check_room()
    except RegistryError as fault:
        return Check("cache", FAULT, fault.message, fault.hint)
    return Check("cache", OK, str(cache_folder()))


def database_check(database: str | None) -> Check:
    """The database: whether it opens, and how much it holds. Never creates or migrates one."""
    from tuning_db import Store

    try:
        with Store.open(database, create=False, migrate=False) as store:
            held = store.statistics()
    except MissingDatabaseError as fault:
        return Check("database", ABSENT, fault.message, fault.hint)
    except TuningDBError as fault:
        return Check("database", FAULT, fault.message, fault.hint)
    counts = f"{text.plural(held.winners, 'winner')}, {text.plural(held.trials, 'trial')}"
    return Check("database", OK, f"{counts}, {held.size_bytes / 2**20:.1f} MiB; schema {held.schema_version}")


def release_check(database: str | None) -> Iterator[Check]:
    """The release that processes are pinned to, if the variable says so."""
    from ..releases.pinning import pinned

    try:
        release = pinned(database)
    except RegistryError as fault:
        yield Check("release", FAULT, fault.message, fault.hint)
        return
    if release is not None:
        yield Check("release", OK, f"{release}, read from {release.path}")


def shipped_check() -> Check:
    """The shipped winners for this hardware, and how many of them are valid for the installed sources."""
    from .. import shipped
    from ..device import Device
    from ..discovery.catalog import Catalog
    from ..dispatch.resolve.standings import standing
    from ..dispatch.resolve.winners import REGIME

    if shipped.ignored():
        return Check("shipped", ABSENT, f"ignored: {shipped.VARIABLE}=0", f"unset {shipped.VARIABLE} to use them")
    device = Device.best()
    try:
        decisions = shipped.shipped(device.hardware(), REGIME)
        runners = shipped.runners(device.hardware(), REGIME)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            stale = [(one, why) for one, why in standing(decisions, Catalog(), device, runners) if why]
    except RegistryError as fault:
        return Check("shipped", FAULT, fault.message, fault.hint)
    if not decisions:
        others = ", ".join(shipped.names()) or "nothing"
        return Check("shipped", ABSENT, f"no winners for {device.name} (there are for: {others})", "run tune")
    found = f"{text.plural(len(decisions) - len(stale), 'winner')} usable, {len(stale)} stale, with {shipped.origin()}"
    if not stale:
        return Check("shipped", OK, found)
    worst, why = stale[0]
    return Check("shipped", OK, f"{found}; e.g. {text.named(worst.problem)}: {why}", "run tune")


def prepared_check() -> Check:
    """The budget of prepared weights on this device."""
    from ..device import Device

    try:
        return Check("prepared", OK, f"weights that are prepared hold {prepared_limit(Device.best())}")
    except RegistryError as fault:
        return Check("prepared", FAULT, fault.message, fault.hint)


def plugin_checks() -> Iterator[Check]:
    """One check for all plugins without fault, and one for each plugin that has one."""
    from ..discovery.catalog import Catalog
    from ..discovery.loading import LACKS
    from .plugins import state

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the faults become lines of the report
        try:
            reports = Catalog().plugins()
        except RegistryError as fault:
            yield Check("plugins", FAULT, fault.message, fault.hint)
            return
    well = [report for report in reports if not report.fault and not report.blocked]
    count = sum(len(report.implementations) for report in well)
    names = ", ".join(report.name for report in well)
    yield Check("plugins", OK if count else FAULT, f"{names}: {text.plural(count, 'implementation')}")
    for report in reports:
        if report not in well:
            faulty = bool(report.fault) and not report.fault.startswith(LACKS)
            advice = "upgrade or uninstall it, or block it with KERNEL_REGISTRY_BLOCK" if faulty else ""
            yield Check("plugin", FAULT if faulty else ABSENT, f"{report.name}: {state(report)}", advice)


def shadow_check(folder: Path) -> Check:
    """A fault if a module in the current folder would be imported as ``registry`` in this package's place."""
    own = Path(__file__).resolve().parents[1]
    for name in ("registry.py", "registry"):
        found = folder / name
        if found.exists() and found.resolve() != own:
            return Check("import", FAULT, f"{found} hides this package from scripts in {folder}", "rename it")
    spec = importlib.util.find_spec("registry")
    return Check("import", OK, f"registry is {Path(spec.origin).parent if spec and spec.origin else own}")


def script_check() -> Check:
    """The script ``tune`` on the PATH: torchtune has one of that name, which may come first."""
    found = shutil.which("tune")
    if found is None:
        return Check("tune", ABSENT, "no such script on the PATH", "use `registry tune`, or activate the environment")
    try:
        ours = bool(_OUR_SCRIPT.search(Path(found).read_text(errors="replace")))
    except OSError:
        ours = False
    if not ours:
        return Check("tune", ABSENT, f"{found} is another package's", "use `registry tune`, which is the same command")
    return Check("tune", OK, found)


def _line(fault: RegistryError) -> str:
    return " ".join(fault.message.split())[:200]


def _import_fault(module: str) -> str:
    """The fault of importing ``module``, "" if none; in another process, which a broken extension may kill."""
    done = _run([sys.executable, "-c", f"import {module}"])
    if done is None:
        return "it hangs"
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]


def _output(command: list[str]) -> str:
    done = _run(command)
    return done.stdout.strip() if done is not None and done.returncode == 0 else ""


def _run(command: list[str]) -> Any:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (subprocess.TimeoutExpired, OSError):
        return None
