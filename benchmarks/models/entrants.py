"""The ways of the benchmark as entrants that are asked and answer: in this process, or each in one of its own."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

from .decoding import CONTEXT, FILLED, Decoding, prefill
from .timing import Round, round_of
from .ways import model_of, settings_of, told, why_not

_END_SECONDS = 20.0
"""How long a process may take to end by itself, which frees its semaphores."""


class EntrantError(Exception):
    """What kept a way from being measured, in a line."""


class Ready(NamedTuple):
    """Seconds that it took until a way could be timed in a form, and a decode step's logits in float32."""

    seconds: float
    logits: npt.NDArray[np.float32] | None


class ModelSizes(NamedTuple):
    """Which model is made: a name of ``ways.MODELS``, its layers, the device, and whether its widths are small.

    Its caches have room for ``context`` tokens, of which ``filled`` are there.
    """

    model: str
    layers: int
    device: torch.device
    small: bool
    context: int = CONTEXT
    filled: int = FILLED


class Entrant(Protocol):
    """One way: ``ask`` names a method of ``Measured`` and what it is given, ``answer`` returns what that returned."""

    way: str

    def ask(self, request: str, *given: Any) -> None:
        """Let the method begin, where it has a process of its own."""

    def answer(self) -> Any:
        """What the method returned. Raises EntrantError with what it raised."""

    def close(self) -> None:
        """End a process of its own."""


class Measured:
    """A way's model, and its step in one form at a time."""

    def __init__(self, way: str, sizes: ModelSizes) -> None:
        self.way, self._sizes = way, sizes
        self._model: Any = None
        self._round: Round | None = None

    def build(self) -> None:
        """Make the model. Raises EntrantError for a peer that is not installed, and for all else that fails."""
        try:
            with torch.no_grad():
                self._model = model_of(
                    self.way, self._sizes.model, self._sizes.layers, self._sizes.device, small=self._sizes.small
                )
        except Exception as fault:
            raise EntrantError(why_not(self.way, fault)) from fault
        gc.collect()

    def ready(self, form: str, batch: int) -> Ready:
        """Compile or capture the step of a form."""
        began = time.perf_counter()
        logits: npt.NDArray[np.float32] | None = None
        with torch.no_grad():
            if form == "prefill":
                self._round = round_of(prefill(self._model, batch), lambda: None)
            else:
                room = {"context": self._sizes.context, "filled": self._sizes.filled}
                decoding = Decoding(self._model, batch, settings_of(self.way), **room)
                self._round = round_of(decoding.in_form(form), decoding.rewind)
                logits = decoding.logits.cpu().numpy()
        return Ready(time.perf_counter() - began, logits)

    def round(self, count: int) -> float:
        """Milliseconds for each of so many steps."""
        assert self._round is not None
        with torch.no_grad():
            return self._round(count)

    def drop(self) -> None:
        """Forget the step and what was compiled."""
        self._round = None
        torch._dynamo.reset()
        gc.collect()


class InProcess:
    """A way in this process: what is asked runs when the answer is wanted."""

    def __init__(self, way: str, sizes: ModelSizes) -> None:
        self.way = way
        self._measured = Measured(way, sizes)
        self._asked: tuple[str, tuple[Any, ...]] | None = None

    def ask(self, request: str, *given: Any) -> None:
        """Keep what is asked."""
        self._asked = request, given

    def answer(self) -> Any:
        """Run it. Raises EntrantError."""
        assert self._asked is not None
        return _answered(self._measured, *self._asked)

    def close(self) -> None:
        """Nothing to end."""


class InWorker:
    """A way in a process of its own, which begins when it is asked."""

    def __init__(self, way: str, sizes: ModelSizes) -> None:
        self.way = way
        spawn = multiprocessing.get_context("spawn")
        self._connection, theirs = spawn.Pipe()
        self._process = spawn.Process(target=_serve, args=(theirs, way, sizes))
        self._process.start()
        theirs.close()

    def ask(self, request: str, *given: Any) -> None:
        """Send it. A process that has ended is noticed by ``answer``."""
        with contextlib.suppress(OSError):
            self._connection.send((request, given))

    def answer(self) -> Any:
        """Wait for the answer. Raises EntrantError, also where the process has ended."""
        try:
            fault, found = self._connection.recv()
        except (EOFError, OSError):
            self._process.join()
            raise EntrantError(f"its process ended with exit code {self._process.exitcode}") from None
        if fault:
            raise EntrantError(fault)
        return found

    def close(self) -> None:
        """End the process, by force if it is busy."""
        self._connection.close()
        self._process.join(_END_SECONDS)
        self._process.kill()
        self._process.join()


def _serve(connection: Connection, way: str, sizes: ModelSizes) -> None:
    measured = Measured(way, sizes)
    with contextlib.suppress(EOFError):
        while True:
            request, given = connection.recv()
            try:
                connection.send(("", _answered(measured, request, given)))
            except EntrantError as fault:
                connection.send((str(fault), None))


def _answered(measured: Measured, request: str, given: Sequence[Any]) -> Any:
    try:
        return getattr(measured, request)(*given)
    except EntrantError:
        raise
    except Exception as fault:  # one way's fault is its row
        raise EntrantError(told(fault)) from fault


@contextlib.contextmanager
def entrants(ways: Sequence[str], sizes: ModelSizes, *, processes: bool) -> Iterator[list[Entrant]]:
    """The entrants of the ways, which are closed at the end."""
    made: list[Entrant] = []
    try:
        for way in ways:
            made.append(InWorker(way, sizes) if processes else InProcess(way, sizes))
        yield made
    finally:
        for one in made:
            one.close()


def answers(asked: Sequence[Entrant], request: str, *given: Any) -> Iterator[tuple[Entrant, Any]]:
    """Ask all, then each with its answer, or its EntrantError in the answer's place."""
    for one in asked:
        one.ask(request, *given)
    for one in asked:
        try:
            yield one, one.answer()
        except EntrantError as fault:
            yield one, fault
