"""Serves pages, optuna-dashboard among them, from a small web server in this process."""

from __future__ import annotations

import contextlib
import importlib.util
import ipaddress
import socket
from collections.abc import Callable, Collection, Iterable
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from ..errors import RegistryError

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

    from optuna.storages import InMemoryStorage


def require() -> None:
    """Raises RegistryError, which says what to install, if optuna-dashboard is missing."""
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


def guarded(application: WSGIApplication, host: str) -> WSGIApplication:
    """``application`` that refuses requests by pages of other sites, which must neither read nor change its data.

    Another site may let its own name resolve to this address, so a name in ``Host`` must be this machine's or ``host``;
    an address is safe. An ``Origin``, which browsers send with changing requests, must be this server's.
    """
    names = {"localhost", host.lower(), socket.gethostname().lower()}

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        asked, origin = environ.get("HTTP_HOST", ""), environ.get("HTTP_ORIGIN")
        if not _names_this_server(asked, names):
            fault = f"Host {asked!r:.200} is not this server\n"
        elif origin is not None and origin.lower() != f"http://{asked.lower()}":
            fault = f"a page of {origin!r:.200} may not use this server\n"
        else:
            return application(environ, start_response)
        start_response("403 Forbidden", [("Content-Type", "text/plain; charset=utf-8")])
        return [fault.encode("utf-8", "replace")]

    return answer


def _names_this_server(asked: str, names: Collection[str]) -> bool:
    try:
        name = urlsplit(f"//{asked}").hostname or ""
        if name in names:
            return True
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def serve(storage: InMemoryStorage, host: str, port: int, opened: Callable[[str], None]) -> None:
    """Serves optuna-dashboard until interrupted, after calling ``opened`` with the address.

    Raises RegistryError for an address that cannot be used.
    """
    from optuna_dashboard import wsgi

    listen(wsgi(storage), host, port, opened)


def listen(application: WSGIApplication, host: str, port: int, opened: Callable[[str], None]) -> None:
    """Serves an application, guarded, until interrupted, after calling ``opened`` with the address.

    Raises RegistryError for an address that cannot be used.
    """
    try:
        server = make_server(host, port, guarded(application, host), server_class=_Server, handler_class=_Quiet)
    except OSError as fault:
        raise RegistryError(
            f"cannot listen on {host} port {port}: {fault.strerror}", hint="choose another --port; 0 takes a free one"
        ) from None
    with server:
        opened(f"http://{host}:{server.server_port}/")
        with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C is the normal end
            server.serve_forever()
