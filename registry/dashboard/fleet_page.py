"""A page of what a fleet is doing, made from the queue at each request; and its data as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from html import escape
from typing import TYPE_CHECKING

from tuning_db import TuningDBError
from tuning_db.queue.status import FleetStatus

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

_REFRESH_S = 5
_SECURE = [
    ("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"),
    ("X-Content-Type-Options", "nosniff"),
    ("Cache-Control", "no-store"),
]
_STYLE = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif }
body { margin: 2rem auto; max-width: 72rem; padding: 0 1rem }
table { border-collapse: collapse; margin: 0 0 2rem; width: 100% }
th, td { text-align: left; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid #8884; vertical-align: top }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums }
"""

_Cell = str | int | float | None


def application(read: Callable[[], FleetStatus], shown: str) -> WSGIApplication:
    """Serves the page at ``/`` and the status as JSON at ``/status.json``; nothing can be changed.

    ``shown`` names the database on the page.
    """

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path, method = environ.get("PATH_INFO", "/"), environ["REQUEST_METHOD"]
        if method not in {"GET", "HEAD"}:
            return _send(start_response, "405 Method Not Allowed", "text/plain", "this page can only be read\n")
        if path not in {"/", "/status.json"}:
            return _send(start_response, "404 Not Found", "text/plain", "expected / or /status.json\n")
        try:
            status = read()
        except TuningDBError as fault:
            return _send(start_response, "503 Service Unavailable", "text/plain", f"{fault}\n")
        if path == "/status.json":
            return _send(start_response, "200 OK", "application/json", json.dumps(asdict(status)))
        return _send(start_response, "200 OK", "text/html", page(status, shown))

    return answer


def page(status: FleetStatus, shown: str) -> str:
    """The page's HTML, which loads nothing and asks for itself again every few seconds."""
    jobs = [
        (one.device, one.queued, one.leased, one.done, one.failed, one.decided, _duration(one.seconds_left))
        for one in status.jobs
    ]
    workers = [
        (
            f"{one.host}:{one.process}", one.device, one.identity, one.state, one.op or None, _duration(one.held_s),
            one.done, _duration(one.seen_s), one.message,
        )
        for one in status.workers
    ]  # fmt: skip
    failures = [
        (_duration(one.ago_s), one.op, one.device, one.host, one.outcome, one.message) for one in status.failures
    ]
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="{_REFRESH_S}">'
        f'<meta name="viewport" content="width=device-width"><title>Fleet</title><style>{_STYLE}</style></head><body>'
        f"<h1>Fleet</h1><p>{escape(shown)}</p>"
        + _table("Jobs", ("for", "queued", "leased", "done", "failed", "problems decided", "time left"), jobs)
        + _table(
            "Workers",
            ("worker", "model", "device", "state", "job", "for", "jobs done", "last seen", "message"),
            workers,
        )
        + _table("Latest failures", ("ago", "op", "model", "host", "outcome", "message"), failures)
        + "</body></html>\n"
    )


def _table(title: str, names: Sequence[str], rows: Sequence[Sequence[_Cell]]) -> str:
    if not rows:
        return f"<h2>{title}</h2><p>none</p>"
    head = "".join(f'<th scope="col">{name}</th>' for name in names)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f"<h2>{title}</h2><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: _Cell) -> str:
    if value is None:
        return "<td>-</td>"
    return f'<td class="number">{value}</td>' if isinstance(value, int | float) else f"<td>{escape(value)}</td>"


def _duration(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    whole = max(0, round(seconds))
    hours, minutes = whole // 3600, whole % 3600 // 60
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {whole % 60:02} s" if minutes else f"{whole} s"


def _send(start_response: StartResponse, status: str, kind: str, text: str) -> list[bytes]:
    content = text.encode("utf-8", "replace")
    headers = [("Content-Type", f"{kind}; charset=utf-8"), ("Content-Length", str(len(content))), *_SECURE]
    start_response(status, headers)
    return [content]
