"""Formats of numbers on the page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

NONE = "–"


def microseconds(value: float | None) -> str:
    """A time in µs, with four significant digits: ``12.34``, ``1,234``; a dash for None."""
    if value is None:
        return NONE
    if value >= 1000:
        return f"{value:,.0f}"
    decimals = 1 if value >= 100 else 2 if value >= 10 else 3
    return f"{value:.{decimals}f}"


def short_us(value: float) -> str:
    """An axis label: ``5 µs``, ``2 ms``."""
    if value >= 1e6:
        return f"{value / 1e6:g} s"
    return f"{value / 1e3:g} ms" if value >= 1000 else f"{value:g} µs"


def si(value: float) -> str:
    """A number with the prefix of its unit: ``4.8 T``, ``20 k``, ``512 ``."""
    for prefix, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {prefix}"
    return f"{value:.3g} "


def ratio(value: float | None) -> str:
    """A ratio: ``1.23``, ``123.4``; a dash for None."""
    if value is None:
        return NONE
    return f"{value:.1f}" if value >= 100 else f"{value:.2f}"


def ratio_unless(value: float | None, noise: bool) -> str:
    """A ratio of times as text, or ``noise`` if finals cannot tell the times apart; the ratio 1.0 is always shown."""
    return "noise" if noise and value not in {None, 1.0} else ratio(value)


def percent(value: float | None) -> str:
    """A fraction in percent: ``1.3%`` for 0.013; a dash for None."""
    if value is None:
        return NONE
    return f"{100 * value:.1f}%" if value < 0.1 else f"{100 * value:.0f}%"


def excess(value: float) -> str:
    """``+40%`` of a ratio of 1.4, ``−3.0%`` of 0.97."""
    return f"{'+' if value >= 1 else '−'}{percent(abs(value - 1))}"


def dimension(value: object) -> str:
    """``4096``, ``128Ki``, ``32000``, ``256Mi``, ``true``: exact, but powers of two are short."""
    match value:
        case bool():
            return str(value).lower()
        case int() | float() if value >= 10_000 and value == int(value):
            whole = int(value)
            if whole % 2**20 == 0:
                return f"{whole // 2**20}Mi"
            return f"{whole // 2**10}Ki" if whole % 2**10 == 0 else str(whole)
        case float():
            return f"{value:g}"
        case _:
            return str(value)


def pairs(values: Mapping[str, Any] | None) -> str:
    """``num_warps=4 num_stages=1``, or a dash when there is nothing."""
    return " ".join(f"{name}={plain(value)}" for name, value in (values or {}).items()) or NONE


def plain(value: object) -> str:
    """A value as text; booleans as in JSON."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def duration(seconds: float | None) -> str:
    """``4.2 s``, ``3 min 04 s``, ``2 h 05 min``."""
    if seconds is None:
        return NONE
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    return f"{whole // 60} min {whole % 60:02} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60:02} min"


def bytes_(value: float) -> str:
    """``141 GB``-like, in powers of two: ``140.0 GiB``."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if value >= size:
            return f"{value / size:.1f}".removesuffix(".0") + f" {unit}"
    return f"{value:g} B"


def named(value: object, name: str) -> str:
    """``value`` as text with a unit, by the suffix of ``name`` (bytes, seconds, share).

    Of a run's noise (``Noise.details``) only the A/A noise by duration is shown: ``A/A 12% at 10 µs``.
    """
    if isinstance(value, Mapping) and name == "noise":
        return _aa_noise(value.get("aa"))
    if isinstance(value, Mapping):
        told = [f"{key} {named(one, name if _unit(name) else str(key))}" for key, one in value.items()]
        return ", ".join(told) or NONE
    if isinstance(value, list | tuple):
        return ", ".join(named(one, name) for one in value) or NONE
    if isinstance(value, int | float) and not isinstance(value, bool):
        unit = _unit(name)
        if unit is not None:
            return unit(float(value))
        return f"{value:g}" if isinstance(value, float) else str(value)
    return plain(value) if value is not None else NONE


def _aa_noise(aa: object) -> str:
    shares = aa.items() if isinstance(aa, Mapping) else ()
    told = [f"{percent(share)} at {us}" for us, share in shares if isinstance(share, int | float)]
    return f"A/A {', '.join(told)}" if told else NONE


def _unit(name: str) -> Callable[[float], str] | None:
    words = name.replace("_", " ").split() or [""]
    if words[-1] == "bytes":
        return bytes_
    if words[-1] == "seconds":
        return duration
    return percent if words[-1] == "share" else None


def device(hardware: Mapping[str, Any]) -> str:
    """The device's name in a hardware identity, else its type."""
    return str(hardware.get("name") or hardware.get("type") or "unknown hardware")
