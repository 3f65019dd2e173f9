"""Engines for PostgreSQL servers: neither side waits for ever for the other when a network stalls.

psycopg has a timeout for connecting and none for an answer. A proxy that still acknowledges what it was sent, and
passes nothing on, is noticed neither by TCP's keepalives nor by its user timeout.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.exc import NoSuchModuleError

from ..errors import UnreachableDatabaseError

if TYPE_CHECKING:
    from sqlalchemy.engine import URL
    from sqlalchemy.pool import Pool

CONNECT_SECONDS = 10
"""The most seconds that a server may take to accept a connection."""

_LEAST_CONNECT_S = 2
"""libpq takes less for this."""

_KEEPALIVES = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3}
_REFUSED = "startup parameter"
"""What a connection pooler such as PgBouncer says about settings that it does not pass on."""

_Result = TypeVar("_Result")


# psycopg warns of a pipeline that a fault has ended, beside the fault that it raises
logging.getLogger("psycopg").addHandler(logging.NullHandler())


def make_engine(url: URL, shown: str, pool: type[Pool], silence_s: float | None, **options: Any) -> Engine:
    """An engine for the server at ``url``, which messages call ``shown``; ``options`` are ``create_engine``'s.

    A statement fails, and the server is lost, when no byte has come for ``silence_s`` seconds (None: never); the server
    ends a transaction in which the client has said nothing for as long, and frees its locks. Parameters that the URL
    gives stay. Raises UnreachableDatabaseError where the driver is not installed.
    """
    connect_s = CONNECT_SECONDS if silence_s is None else min(CONNECT_SECONDS, silence_s)
    arguments = {"connect_timeout": max(_LEAST_CONNECT_S, int(connect_s)), **_KEEPALIVES}
    if silence_s is not None:
        arguments["tcp_user_timeout"] = int(1000 * silence_s)
    given = {name: value for name, value in arguments.items() if name not in url.query}
    try:
        engine = create_engine(url, connect_args=given, poolclass=pool, **options)
    except (ImportError, NoSuchModuleError) as fault:
        hint = "pip install 'kernel-registry[postgresql]'"
        raise UnreachableDatabaseError(f"{shown} needs a driver that is not installed ({fault})", hint=hint) from fault
    if silence_s is not None and engine.dialect.driver == "psycopg":
        _limit(engine, silence_s, settings=_settings(silence_s) if "options" not in url.query else "")
    return engine


def _settings(silence_s: float) -> str:
    """Settings of a session, at its start: a statement of its own would be a round trip for each connection."""
    milliseconds = int(1000 * silence_s)
    names = ("idle_in_transaction_session_timeout", "tcp_user_timeout")
    return " ".join(f"-c {name}={milliseconds}" for name in names)


def _limit(engine: Engine, silence_s: float, settings: str) -> None:
    """Make the engine's connections of the class that gives a silent server up."""
    import psycopg

    kind = _patient_connection(silence_s)
    passed_on = {"options": settings} if settings else {}

    @event.listens_for(engine, "do_connect")
    def connect(_: object, __: object, arguments: list[Any], parameters: dict[str, Any]) -> Any:
        try:
            return kind.connect(*arguments, **parameters, **passed_on)
        except psycopg.OperationalError as fault:
            if not passed_on or _REFUSED not in str(fault):
                raise
            passed_on.clear()
            return kind.connect(*arguments, **parameters)


def _patient_connection(silence_s: float) -> Any:
    """A class of psycopg's connections that are closed when the server is silent for so long."""
    import psycopg

    class PatientConnection(psycopg.Connection[Any]):
        def wait(self, gen: Any, *arguments: Any, **options: Any) -> Any:
            # every exchange with the server passes here; psycopg tells its generator of each 0.1 s without a byte
            try:
                return super().wait(_until_silent(gen, silence_s), *arguments, **options)
            except TimeoutError as fault:
                self.pgconn.finish()  # a rollback would wait as long again
                raise psycopg.OperationalError(str(fault)) from None

    return PatientConnection


def _until_silent(exchange: Generator[Any, int, _Result], silence_s: float) -> Generator[Any, int, _Result]:
    """``exchange``, psycopg's generator of one exchange. Raises TimeoutError after ``silence_s`` without a byte."""
    heard, ready = time.monotonic(), None
    while True:
        try:
            # a generator that waits for nothing ends at once
            waits_for = next(exchange) if ready is None else exchange.send(ready)
        except StopIteration as end:
            result: _Result = end.value
            return result
        ready = yield waits_for
        now = time.monotonic()
        if ready:
            heard = now
        elif now - heard > silence_s:
            raise TimeoutError(f"the server was silent for {silence_s:g} s")
