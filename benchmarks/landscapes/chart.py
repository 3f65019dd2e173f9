"""Curves of regret against trials as one SVG, written without a library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

_WIDTH, _HEIGHT, _LEFT, _TOP = 720, 360, 60, 36
_RIGHT, _BOTTOM = 150, 44
_COLOURS = ("#0b6e4f", "#1f77b4", "#d97706", "#8a8a8a", "#9467bd", "#c0392b")


def chart(title: str, curves: Mapping[str, Sequence[float]], most: float) -> str:
    """SVG text. A curve is the regret after 1, 2, 3... trials, as a fraction; values above ``most`` are cut off."""
    longest = max(len(curve) for curve in curves.values())
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
        f'font-size="12"><rect width="100%" height="100%" fill="white"/>',
        f'<text x="{_LEFT}" y="20" font-size="14">{escape(title)}</text>',
        *_axes(longest, most),
    ]
    for number, (name, curve) in enumerate(curves.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        points = " ".join(
            f"{_x(trial, longest):.1f},{_y(min(value, most), most):.1f}" for trial, value in enumerate(curve, 1)
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        y = _TOP + 14 + 20 * number
        x = _WIDTH - _RIGHT + 12
        parts.append(f'<path d="M{x} {y - 4}h18" stroke="{colour}" stroke-width="3"/>')
        parts.append(f'<text x="{x + 24}" y="{y}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>\n"])


def _axes(longest: int, most: float) -> list[str]:
    parts = []
    for step in range(6):
        value = most * step / 5
        y = _y(value, most)
        parts.append(f'<path d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{100 * value:.0f}%</text>')
    for trial in range(10, longest + 1, 10):
        x = _x(trial, longest)
        parts.append(f'<text x="{x:.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">{trial}</text>')
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{_HEIGHT - 8}" text-anchor="middle">trials</text>')
    return parts


def _x(trial: int, longest: int) -> float:
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (trial - 1) / max(1, longest - 1)


def _y(value: float, most: float) -> float:
    return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * value / most
