"""Processes of ours that work when they are told to, and say what came of it."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import resource
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection as Link
from pathlib import Path
from typing import Any, TypeVar

Result = TypeVar("Result")
#: Longer than any round of a full run takes.
ANSWER_SECONDS_MAX = 3600.0
_SPAWN = multiprocessing.get_context("spawn")


class Worker:
    """One process, which runs ``target(link, *arguments)``; it must first send ``"ready"``."""

    def __init__(self, target: Callable[..., None], *arguments: object) -> None:
        self.link, theirs = _SPAWN.Pipe()
        self._process = _SPAWN.Process(target=target, args=(theirs, *arguments), daemon=True)
        self._process.start()
        theirs.close()
        assert self.receive() == "ready"

    def tell(self, message: object) -> None:
        """Send it something to do."""
        self.link.send(message)

    def receive(self) -> Any:
        """Wait for what it says next."""
        if not self.link.poll(ANSWER_SECONDS_MAX):
            raise TimeoutError("a process of this benchmark says nothing any more")
        return self.link.recv()

    def end(self) -> None:
        """Make it end: it is told by the closed link, and killed if that is not enough."""
        self.link.close()
        self._process.join(10)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


@contextmanager
def crew(target: Callable[..., None], *each: Sequence[object]) -> Iterator[list[Worker]]:
    """One worker for each list of arguments."""
    workers: list[Worker] = []
    try:
        for arguments in each:
            workers.append(Worker(target, *arguments))  # noqa: PERF401 -- those started must end
        yield workers
    finally:
        for worker in workers:
            worker.end()


def together(workers: Sequence[Worker], message: object) -> list[Any]:
    """Tell all of them the same, and wait for all."""
    for worker in workers:
        worker.tell(message)
    return [worker.receive() for worker in workers]


def messages(link: Link) -> Iterator[Any]:
    """What a worker is told, until its parent has gone."""
    link.send("ready")
    while True:
        try:
            yield link.recv()
        except EOFError:
            return


@contextmanager
def listening(link: Link, answer: Callable[[], object]) -> Iterator[asyncio.Event]:
    """Let the running loop send an ``answer`` whenever the parent says something; the event is set
    when it has gone.
    """
    loop, gone = asyncio.get_running_loop(), asyncio.Event()

    def told() -> None:
        try:
            link.recv()
        except EOFError:
            gone.set()
        else:
            link.send(answer())

    loop.add_reader(link.fileno(), told)
    # uvloop has made it non-blocking: an answer longer than its buffer would break off half-way.
    os.set_blocking(link.fileno(), True)
    try:
        yield gone
    finally:
        loop.remove_reader(link.fileno())


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """Run on the loop that the consumer's own command would take."""
    logging.basicConfig(level=logging.ERROR, stream=sys.stderr)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(main)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return that of uvloop where it is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def cpu_seconds() -> float:
    """What this process has used so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def peak_megabytes() -> float:
    """The most memory that this process has held."""
    return _megabytes("VmHWM")


def resident_megabytes() -> float:
    """The memory that this process holds now (its peak where there is no /proc)."""
    return _megabytes("VmRSS")


def _megabytes(mark: str) -> float:
    """By a mark of the process's own memory: what getrusage tells also counts what the process was
    before its exec, a copy of its parent (Linux in KiB, macOS in bytes).
    """
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / 2**20 if sys.platform == "darwin" else peak / 2**10
    line = next(line for line in status.splitlines() if line.startswith(f"{mark}:"))
    return int(line.split()[1]) / 2**10
