"""A network that stalls: connections stay open, what is sent is acknowledged, and nothing arrives."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from pathlib import Path


class StallingProxy:
    """Forwards connections on loopback to a server's socket; while ``stalled`` is set it keeps what it was sent."""

    def __init__(self, socket_path: Path) -> None:
        self._target = str(socket_path)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.stalled = threading.Event()
        self._over = threading.Event()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._peers: dict[socket.socket, socket.socket] = {}
        self._thread = threading.Thread(target=self._forward)
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        for each in (self._listener, *self._peers):
            each.close()
        self._selector.close()

    def _forward(self) -> None:
        while not self._over.is_set():
            if self.stalled.is_set():
                time.sleep(0.05)
                continue
            for key, _ in self._selector.select(0.05):
                self._pass_on(key.fileobj)  # type: ignore[arg-type]

    def _pass_on(self, one: socket.socket) -> None:
        if one is self._listener:
            client, _ = self._listener.accept()
            server = socket.socket(socket.AF_UNIX)
            server.connect(self._target)
            self._peers |= {client: server, server: client}
            for each in (client, server):
                self._selector.register(each, selectors.EVENT_READ)
            return
        other = self._peers.get(one)
        if other is None:  # closed with its peer, whose end was read before it
            return
        with contextlib.suppress(OSError):
            if data := one.recv(1 << 16):
                other.sendall(data)
                return
        for each in (one, other):
            if each in self._peers:
                del self._peers[each]
                self._selector.unregister(each)
                each.close()
