"""optuna-dashboard behind a small web server of this process."""

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
        """A line a request would bury the one that says where to look."""


def serve(storage: InMemoryStorage, host: str, port: int, opened: Callable[[str], None]) -> None:
    """Serve until interrupted; ``opened`` is told the address. Raises RegistryError for one that cannot be had."""
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
