"""``registry dashboard``: the studies as a browser gets them, from a real server."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from wsgiref.simple_server import make_server

import optuna
import pytest

from registry.dashboard.serving import guarded, listen
from registry.dashboard.studies import rebuild
from registry.report.facts import read
from tuning_db import CandidateKey, Store

from ..report.records import H200, fill, softmax, trial
from .conftest import Command

NAME = "softmax rows=1 cols=4096"


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return fill(tmp_path / "some.db")


@contextmanager
def serving(database: Path) -> Iterator[str]:
    """The address of a dashboard in a process of its own; afterwards it is interrupted as by Ctrl-C."""
    script = "import kernel_registry; kernel_registry.registry()"
    command = [sys.executable, "-c", script, "dashboard", "--db", str(database), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+/", line)
        assert found, line + (process.stderr.read() if process.stderr else "")
        assert line.startswith("3 studies with 11 trials at ")
        yield found.group()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        assert (process.returncode, errors) == (0, "")
    finally:
        process.kill()
        process.communicate()


def fetched(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return bytes(answer.read())


@pytest.fixture
def url(database: Path) -> Iterator[str]:
    """The address of a dashboard as ``listen`` makes it, in a thread: a process of its own imports for seconds."""
    from optuna_dashboard import wsgi

    with Store.open(database) as store:
        application = guarded(wsgi(rebuild(read(store), store)), "127.0.0.1")
    with make_server("127.0.0.1", 0, application) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.mark.thorough
def test_a_browser_gets_the_page_the_studies_and_the_trials(database: Path) -> None:
    with serving(database) as url:
        the_page_the_studies_and_the_trials_are_served(url)


def the_page_the_studies_and_the_trials_are_served(url: str) -> None:
    assert b"<html" in fetched(f"{url}dashboard/")
    studies = json.loads(fetched(f"{url}api/studies"))["study_summaries"]
    names = {study["study_name"]: study for study in studies}
    assert names.keys() >= {NAME, "softmax rows=256 cols=4096", "softmax rows=8 cols=128256"}
    detail = json.loads(fetched(f"{url}api/studies/{names[NAME]['study_id']}?after=0"))
    told = {entry["key"]: entry["value"] for entry in detail["user_attrs"]}
    assert told["winner"] == "triton.split BLOCK=1024 num_warps=8"
    assert [one["state"] for one in detail["trials"]] == ["Complete", "Complete", "Complete", "Pruned", "Fail"]
    assert [one["values"] for one in detail["trials"][:3]] == [[12.0], [6.0], [4.0]]
    best = {one["name"]: one["param_external_value"] for one in detail["best_trials"][0]["params"]}
    assert best == {"implementation": "triton.split", "triton.split.BLOCK": "1024", "triton.split.num_warps": "8"}
    failed = {entry["key"]: entry["value"] for entry in detail["trials"][4]["user_attrs"]}
    assert failed["status"] == "wrong_result"
    assert "alert" in failed["message"]


def study_of(path: Path, name: str) -> optuna.Study:
    with Store.open(path) as store:
        return optuna.load_study(study_name=name, storage=rebuild(read(store), store))


def test_a_study_is_over_the_joint_space(database: Path) -> None:
    study = study_of(database, NAME)
    wide = study.trials[1].distributions
    assert wide["implementation"].choices == ("torch.native", "triton.row", "triton.split")  # type: ignore[attr-defined]
    assert wide["triton.row.num_warps"].choices == (4, 16, 32)  # type: ignore[attr-defined]
    assert study.best_trial.number == 2
    assert study.metric_names == ["median µs"]


def status(url: str, headers: dict[str, str], data: bytes | None = None) -> int:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as fault:
        with fault:
            return fault.code


def test_a_server_in_a_thread_has_them_too(url: str) -> None:
    the_page_the_studies_and_the_trials_are_served(url)


def test_pages_of_other_sites_neither_read_nor_change_it(url: str) -> None:
    port, api = url.rstrip("/").rpartition(":")[2], f"{url}api/studies"
    create = json.dumps({"study_name": "x", "directions": ["minimize"]}).encode()
    studies = len(json.loads(fetched(api))["study_summaries"])
    for host in (f"127.0.0.1:{port}", f"localhost:{port}", f"[::1]:{port}", "192.168.7.7"):
        assert status(api, {"Host": host}) == 200, host
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "[::1", "a@127.0.0.1@b", "x:y"):
        assert status(api, {"Host": host}) == 403, host
    json_type = {"Content-Type": "application/json"}
    for origin in ("http://evil.example", "null", "http://127.0.0.1:1", f"https://127.0.0.1:{port}"):
        assert status(api, {**json_type, "Origin": origin}, create) == 403, origin
    assert len(json.loads(fetched(api))["study_summaries"]) == studies
    assert status(api, {**json_type, "Origin": url.rstrip("/")}, create) == 201


def answer_to(url: str, request: bytes) -> bytes:
    """The whole answer to a request that is sent as it is."""
    place = urllib.parse.urlsplit(url)
    with socket.create_connection((place.hostname, place.port), timeout=60) as connection:
        connection.sendall(request.replace(b"HOST", f"Host: {place.netloc}".encode()))
        return b"".join(iter(lambda: connection.recv(1 << 16), b""))


def test_odd_requests_are_answered_and_leave_the_terminal_alone(url: str, capfd: pytest.CaptureFixture[str]) -> None:
    for request, expected in (
        (b"GET /static/bundle.js HTTP/1.0\r\nHOST\r\n\r\n", b"200"),  # without Accept-Encoding, as curl asks
        (b"GET /static/../../../../etc/passwd HTTP/1.0\r\nHOST\r\n\r\n", b"403"),
        (b"GET /api/studies/7777777 HTTP/1.0\r\nHOST\r\n\r\n", b"404"),
        (b"GET /%00\x1b[31m HTTP/1.0\r\nHOST\r\n\r\n", b"404"),
        (b"GET /api/studies?" + b"a" * 60000 + b" HTTP/1.0\r\nHOST\r\n\r\n", b"200"),
        (b"GET /" + b"a" * 100000 + b" HTTP/1.0\r\nHOST\r\n\r\n", b"414"),
        (b"GET / HTTP/1.0\r\n\r\n", b"403"),
        (b"POST /api/studies HTTP/1.0\r\nHOST\r\nContent-Length: -5\r\n\r\n{}", b"400"),
        (b"POST /api/studies HTTP/1.0\r\nHOST\r\nContent-Length: x\r\n\r\n{}", b"400"),
    ):
        found = answer_to(url, request)
        assert found.split()[1] == expected, found[:200]
        assert b"root:x:0" not in found
    assert json.loads(fetched(f"{url}api/studies"))["study_summaries"]
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("host", "told"),
    [
        ("127.0.0.1", "http://127.0.0.1:{}/"),
        ("localhost", "http://localhost:{}/"),
        ("::1", "http://[::1]:{}/"),
        ("0.0.0.0", "http://0.0.0.0:{}/, which other machines can reach without a password"),
    ],
)
def test_where_it_can_be_reached_is_told(host: str, told: str) -> None:
    if host == "::1":
        with socket.socket(socket.AF_INET6) as tried:
            try:
                tried.bind((host, 0))
            except OSError:
                pytest.skip("this machine has no IPv6")
    seen: list[str] = []

    def opened(url: str) -> None:
        seen.append(url)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        listen(lambda environ, start_response: [], host, 0, opened)
    assert re.fullmatch(re.escape(told).replace(re.escape("{}"), r"\d+"), seen[0])


def test_when_a_trial_began_and_ended_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "timed.db"
    row = CandidateKey("triton.row", "f", {})
    timed = trial(softmax(1), row, 5.0, details={"seconds": {"load": 1.0, "verify": 2.0, "measure": 0.5}})
    with Store.open(path) as store:
        store.add_trials(store.start_run(H200), [timed])
    (found,) = study_of(path, "softmax rows=1").trials
    assert found.datetime_complete == timed.created
    assert found.duration is not None
    assert found.duration.total_seconds() == 3.5


@pytest.mark.parametrize("values", [[True, 1, False], [None, "a", 3], [[1, 2], {"b": 1}], [0.5, 2, 1]])
@pytest.mark.few(2)
def test_any_value_of_a_config_can_be_a_choice(tmp_path: Path, values: list[Any]) -> None:
    path = tmp_path / "odd.db"
    with Store.open(path) as store:
        trials = [trial(softmax(1), CandidateKey("x", "f", {"p": value}), 5.0) for value in values]
        store.add_trials(store.start_run(H200), trials)
    assert len(study_of(path, "softmax rows=1").trials) == len(values)


def test_hardware_of_the_same_name_gets_studies_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "two.db"
    smaller = H200.__class__({**H200.hardware, "memory_bytes": 2**36}, H200.software)
    with Store.open(path) as store:
        for environment in (H200, smaller):
            one = trial(softmax(1), CandidateKey("x", "f", {}), 5.0, environment=environment)
            store.add_trials(store.start_run(environment), [one])
        storage = rebuild(read(store), store)
    names = {study.study_name for study in optuna.get_all_study_summaries(storage)}
    assert names == {"softmax rows=1, NVIDIA H200", "softmax rows=1, NVIDIA H200 (2)"}


def test_a_missing_extra_is_told_in_a_line(command: Command, database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna_dashboard", None)
    told = command("registry", "dashboard", "--db", database)
    assert told.code == 2
    assert "registry dashboard needs optuna-dashboard, which is not installed" in told.err
    assert "pip install 'kernel-registry[dashboard]'" in told.err


def test_slips_are_told_in_a_line(command: Command, database: Path, tmp_path: Path) -> None:
    with Store.open(tmp_path / "empty.db"):
        pass
    for arguments, message in (
        (["--db", tmp_path / "empty.db"], "no trials in sqlite:///"),
        (["--db", tmp_path / "absent.db"], "there is no database at"),
        (["--db", database, "--op", "gelu"], "no trials of gelu in"),
        (["--db", database, "--op", "sofmax"], "unknown op 'sofmax'"),
        (["--db", database, "--port", "70000"], "--port 70000: expected 0 to 65535"),
        (["--db", database, "--host", "256.0.0.1"], "cannot listen on 256.0.0.1 port 8080"),
        (["--db", database, "--host", "192.0.2.1"], "choose an address of this machine as --host"),
        (["--db", database, "--host", ""], "choose an address of this machine as --host"),
    ):
        told = command("registry", "dashboard", *arguments)
        assert (told.code, told.out) == (2, "")
        assert message in told.err


def test_a_port_that_is_taken_is_told(command: Command, database: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        told = command("registry", "dashboard", "--db", database, "--port", str(port))
    assert told.code == 2
    assert f"cannot listen on 127.0.0.1 port {port}: Address already in use" in told.err
    assert "--port" in told.err
