"""Serves optuna-dashboard from a small web server in this process."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from ..errors import RegistryError

if TYPE_CHECKING:
    from optuna.storages import InMemoryStorage


def require() -> None:
    """Raises RegistryError, with what to install, where optuna-dashboard is missing."""
    if importlib.util.find_spec("optuna_dashboard") is None:
        raise RegistryError(
            "registry dashboard needs optuna-dashboard, which is not installed",
            hint="pip install 'kernel-registry[dashboard]', or pip install optuna-dashboard",
        )


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True  # Ctrl-C does not wait for a browser


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (named so by the base class)
        """Logs nothing: a line per request would hide the line that names the address."""


def serve(storage: InMemoryStorage, host: str, port: int, opened: Callable[[str], None]) -> None:
    """Serves until interrupted, after calling ``opened`` with the address.

    Raises RegistryError for an address that cannot be used.
    """
    from optuna_dashboard import wsgi

    try:
        server = make_server(host, port, wsgi(storage), server_class=_Server, handler_class=_Quiet)
    except OSError as fault:
        raise RegistryError(
            f"cannot listen on {host} port {port}: {fault.strerror}", hint="choose another --port; 0 takes a free one"
        ) from None
    with server:
        opened(f"http://{host}:{server.server_port}/")
        with contextlib.suppress(KeyboardInterrupt):  # the way to end it, no fault
            server.serve_forever()
