"""The device's lock: one holder at a time, turns between processes, freed by a death, harmless where it cannot be."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from registry.device import Device
from registry.tuner.workers.device_lock import DeviceLock

CPU = Device.of("cpu")
CONTEXT = multiprocessing.get_context("fork")  # torch is imported here


def hold(channel: Connection, cache: Path) -> None:
    """Takes the lock on request, says so, and keeps it until told otherwise."""
    os.environ["KERNEL_REGISTRY_CACHE"] = str(cache)
    lock = DeviceLock(CPU)
    while channel.recv() == "take":
        with lock.held(lambda: channel.send("waiting")):
            channel.send("held")
            channel.recv()
        channel.send("freed")


class Holder:
    """A process that does as :func:`hold` says, with the locks of that cache."""

    def __init__(self, cache: Path) -> None:
        self.channel, theirs = CONTEXT.Pipe()
        self.process = CONTEXT.Process(target=hold, args=(theirs, cache))
        self.process.start()
        theirs.close()

    def ask(self, *words: str) -> str:
        for word in words:
            self.channel.send(word)
        return self.hear()

    def hear(self) -> str:
        assert self.channel.poll(60)
        return str(self.channel.recv())

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.channel.close()


@pytest.fixture(scope="module")
def holders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Holder]]:
    cache = tmp_path_factory.mktemp("cache")
    found = [Holder(cache), Holder(cache)]
    yield found
    for holder in found:
        holder.end()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_one_process_holds_the_device_and_the_next_gets_its_turn(holders: list[Holder]) -> None:
    first, second = holders
    assert first.ask("take") == "held"
    assert second.ask("take") == "waiting"
    assert not second.channel.poll(0.1)
    assert first.ask("free") == "freed"
    assert second.hear() == "held"
    # who comes back at once stands in line behind whoever waits
    assert first.ask("take") == "waiting"
    second.channel.send("free")
    assert second.hear() == "freed"
    assert first.hear() == "held"
    assert first.ask("free") == "freed"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_holder_that_is_killed_frees_the_device(holders: list[Holder]) -> None:
    first, second = holders
    assert first.ask("take") == "held"
    assert second.ask("take") == "waiting"
    assert first.process.pid is not None
    os.kill(first.process.pid, signal.SIGKILL)
    assert second.hear() == "held"


@pytest.mark.usefixtures("own_lock")
def test_who_waits_in_line_is_before_who_comes_back() -> None:
    lock, other = DeviceLock(CPU), DeviceLock(CPU)
    order: list[str] = []
    waits = threading.Event()

    def wait() -> None:
        with other.held(waits.set):
            order.append("other")

    with lock.held(lambda: None):
        thread = threading.Thread(target=wait)
        thread.start()
        assert waits.wait(60)
    with lock.held(lambda: None):
        order.append("back")
    thread.join()
    assert order == ["other", "back"]
    lock.close()
    other.close()


def test_where_no_lock_file_can_be_made_nobody_is_kept_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "taken").write_text("a file")
    monkeypatch.setenv("KERNEL_REGISTRY_CACHE", str(tmp_path / "taken"))
    with DeviceLock(CPU).held(lambda: pytest.fail("nobody holds it")):
        pass
