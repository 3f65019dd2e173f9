"""``registry fleet watch``: the page as a browser gets it, from a real server; other sites and changes are refused."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from wsgiref.simple_server import make_server

import pytest

from registry.dashboard.fleet_page import application
from registry.dashboard.serving import guarded
from tuning_db import JobQueue

from ...tuning_db.queue.conftest import Fleet, problems, worker
from ..conftest import Command


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """The address of a server of the page, as ``listen`` makes it."""
    with JobQueue.open(tmp_path / "fleet.db") as queue:
        fleet = Fleet(queue)
        fleet.plan(problems(1), problems(2))
        one = worker("<script>alert(1)</script>")
        queue.register(one)
        queue.fail(fleet.takes(one).fence, "no <b>candidate</b> was right")
        server = make_server("127.0.0.1", 0, guarded(application(queue.status, queue.url), "127.0.0.1"))
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()
        server.server_close()


def answer(url: str, **headers: str) -> tuple[int, str, dict[str, str]]:
    method = headers.pop("method", "GET")
    request = urllib.request.Request(url, headers=headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as found:
            return found.status, found.read().decode(), dict(found.headers)
    except urllib.error.HTTPError as fault:
        with fault:
            return fault.code, fault.read().decode(), dict(fault.headers)


def test_the_page_and_its_data_show_the_fleet(address: str) -> None:
    code, page, headers = answer(f"{address}/")
    assert (code, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert "NVIDIA H200" in page
    assert "no &lt;b&gt;candidate&lt;/b&gt; was right" in page
    assert "<script>" not in page
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    code, text, _ = answer(f"{address}/status.json")
    status = json.loads(text)
    assert (code, status["jobs"][0]["queued"], status["failures"][0]["outcome"]) == (200, 2, "failed")


def test_nothing_can_be_changed_and_other_sites_are_refused(address: str) -> None:
    assert answer(f"{address}/", method="POST")[0] == 405
    assert answer(f"{address}/other")[0] == 404
    assert answer(f"{address}/", Host="evil.example")[0] == 403
    assert answer(f"{address}/", Origin="http://evil.example")[0] == 403


def test_an_address_that_cannot_be_used_is_told(command: Command, tmp_path: Path) -> None:
    JobQueue.open(tmp_path / "fleet.db").close()
    told = command("registry", "fleet", "watch", "--port", "65536", "--db", tmp_path / "fleet.db")
    assert (told.code, "expected 0 to 65535" in told.err) == (2, True)
    told = command("registry", "fleet", "watch", "--host", "203.0.113.1", "--db", tmp_path / "fleet.db")
    assert (told.code, "cannot listen on 203.0.113.1" in told.err) == (2, True)
