"""A server on loopback that answers ``huggingface_hub`` as the hub does: commits, listings and files by revision."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

Files = Mapping[str, bytes]


def commit_of(number: int) -> str:
    """The hash of a commit, 40 hexadecimal digits."""
    return hashlib.sha1(str(number).encode()).hexdigest()


class HubServer(ThreadingHTTPServer):
    """Serves ``files`` by kind and name of the repository ("kernels/ORG/NAME"), then by commit.

    refs     of each repository what a branch or tag points to
    gated    repositories that nobody here may read
    asked    paths of all requests
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.files: dict[str, dict[str, Files]] = {}
        self.refs: dict[str, dict[str, str]] = {}
        self.gated: set[str] = set()
        self.asked: list[str] = []
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Its address, for ``HF_ENDPOINT``."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def stop(self) -> None:
        """End it: its address refuses connections from then on."""
        self.shutdown()
        self.server_close()
        self._thread.join()


class _Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.0"  # no connection is kept: a server that is stopped answers no more
    server: HubServer

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def log_message(self, *_: object) -> None:
        """Nothing is printed."""

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.asked.append(path)
        parts = path.strip("/").split("/")
        if parts[0] == "api":
            kind, organisation, name, what, revision = parts[1:6]
            repository, rest = f"{kind}/{organisation}/{name}", []
        else:
            kind = parts.pop(0) if parts[0] == "kernels" else "models"
            organisation, name, what, revision, *rest = parts
            repository = f"{kind}/{organisation}/{name}"
        commits = self.server.files.get(repository)
        if commits is None:
            return self._refuse(404, "RepoNotFound")
        if repository in self.server.gated:
            return self._refuse(403, "GatedRepo")
        commit = self.server.refs.get(repository, {}).get(revision, revision)
        if commit not in commits:
            return self._refuse(404, "RevisionNotFound")
        return self._tell(f"{organisation}/{name}", commit, commits[commit], what, "/".join(rest))

    def _tell(self, name: str, commit: str, files: Files, what: str, path: str) -> None:
        if what == "revision":
            listed = [{"rfilename": each} for each in files]
            self._send(json.dumps({"id": name, "modelId": name, "sha": commit, "siblings": listed}).encode(), commit)
        elif what == "tree":
            entries = [
                {"type": "file", "path": each, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                for each, data in files.items()
            ]
            self._send(json.dumps(entries).encode(), commit)
        elif path in files:
            self._send(files[path], commit)
        else:
            self._refuse(404, "EntryNotFound")

    def _send(self, data: bytes, commit: str) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("ETag", f'"{hashlib.sha1(data).hexdigest()}"')
        self.send_header("X-Repo-Commit", commit)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    def _refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()
