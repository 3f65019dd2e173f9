"""Serves pages, optuna-dashboard among them, from a small web server in this process."""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import io
import ipaddress
import logging
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


class _ServerOnIPv6(_Server):
    address_family = socket.AF_INET6


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (named so by the base class)
        """Logs nothing: a line per request would hide the line that names the address."""


def guarded(application: WSGIApplication, host: str) -> WSGIApplication:
    """``application`` that refuses requests by pages of other sites, which must neither read nor change its data.

    Another site may let its own name resolve to this address, so a name in ``Host`` must be this machine's or ``host``;
    an address is safe. An ``Origin``, which browsers send with changing requests, must be this server's. Faults of the
    application are answered, and not written to the terminal.
    """
    names = {"localhost", host.lower(), socket.gethostname().lower()}

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        asked, origin, answered = environ.get("HTTP_HOST", ""), environ.get("HTTP_ORIGIN"), "403 Forbidden"
        if not _names_this_server(asked, names):
            fault = f"Host {asked!r:.200} is not this server\n"
        elif origin is not None and origin.lower() != f"http://{asked.lower()}":
            fault = f"a page of {origin!r:.200} may not use this server\n"
        elif not (environ.get("CONTENT_LENGTH") or "0").isdecimal():
            fault, answered = "Content-Length is no number\n", "400 Bad Request"
        else:
            # optuna-dashboard expects what every browser sends; its tracebacks would quote requests to a terminal
            environ.setdefault("HTTP_ACCEPT_ENCODING", "identity")
            environ["wsgi.errors"] = io.StringIO()
            return application(environ, start_response)
        start_response(answered, [("Content-Type", "text/plain; charset=utf-8")])
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


def _is_private(host: str) -> bool:
    """True for an address or a name that only this machine can reach."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def serve(storage: InMemoryStorage, host: str, port: int, opened: Callable[[str], None]) -> None:
    """Serves optuna-dashboard until interrupted, after calling ``opened`` with the address.

    Raises RegistryError for an address that cannot be used.
    """
    from optuna_dashboard import wsgi

    # it logs a traceback for each request that it cannot answer
    logging.getLogger("optuna_dashboard").addHandler(logging.NullHandler())
    listen(wsgi(storage), host, port, opened)


def listen(application: WSGIApplication, host: str, port: int, opened: Callable[[str], None]) -> None:
    """Serves an application, guarded, until interrupted, after calling ``opened`` with the address.

    Where other machines can reach it, that is told behind the address.

    Raises RegistryError for an address that cannot be used.
    """
    kind, named = (_ServerOnIPv6, f"[{host}]") if ":" in host else (_Server, host)
    try:
        if not host:  # which the system takes for every address
            raise socket.gaierror(socket.EAI_NONAME, "no address")
        server = make_server(host, port, guarded(application, host), server_class=kind, handler_class=_Quiet)
    except OSError as fault:
        is_hosts = isinstance(fault, socket.gaierror) or fault.errno == errno.EADDRNOTAVAIL
        hint = (
            "choose an address of this machine as --host" if is_hosts else "choose another --port; 0 takes a free one"
        )
        raise RegistryError(f"cannot listen on {host} port {port}: {fault.strerror}", hint=hint) from None
    with server:
        warning = "" if _is_private(host) else ", which other machines can reach without a password"
        opened(f"http://{named}:{server.server_port}/{warning}")
        with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C is the normal end
            server.serve_forever()
