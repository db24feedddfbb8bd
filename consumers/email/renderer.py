"""Runs an application's rendering where it can neither block the consumer nor run for ever.

Always on a thread: the hand-over costs about 65 us beside some 250 us for two small templates, and
nobody can know beforehand which payload makes a function loop.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Final, Generic, TypeVar

from outbox.gateway import Unrenderable

_log = logging.getLogger(__name__)
Result = TypeVar("Result")

#: A render takes about a millisecond; one that takes this long loops.
RENDER_SECONDS_MAX: Final = 2.0
#: Renders at a time that share the interpreter; more of them only wait for each other.
_AT_ONCE: Final = 4
#: One that takes longer than this gives its place up, so that looping ones delay nobody for long.
_QUICK_SECONDS: Final = 0.1


class Renderer:
    """Runs functions on threads of its own, each within ``seconds_max``."""

    def __init__(self, seconds_max: float = RENDER_SECONDS_MAX) -> None:
        self._seconds_max = seconds_max
        self._places = asyncio.Semaphore(_AT_ONCE)
        self._idle: list[_Worker] = []

    async def run(self, work: Callable[[], Result]) -> Result:
        """Return what ``work`` returns.

        Raises:
            Unrenderable: it raised this, raised something else, or took too long. The thread of
                one that took too long is told to stop at its next step in Python.
        """
        async with self._places:
            worker = self._idle.pop() if self._idle else _Worker()
            result = worker.submit(work)
            await _wait(worker, result, min(_QUICK_SECONDS, self._seconds_max))
        if not result.done():
            await self._patience(worker, result)
        self._rest(worker)
        return result.result()

    def close(self) -> None:
        """Let the idle threads end."""
        for worker in self._idle:
            worker.retire()
        self._idle.clear()

    async def _patience(self, worker: _Worker, result: asyncio.Future[Any]) -> None:
        # In two halves: when the whole process was stopped meanwhile, the first one is over at
        # once, and the thread gets the second.
        for _ in range(2):
            await _wait(worker, result, self._seconds_max / 2)
        if not result.done():
            worker.stop()
            result.cancel()
            raise Unrenderable(f"rendering took longer than {self._seconds_max:g} s")

    def _rest(self, worker: _Worker) -> None:
        if len(self._idle) < _AT_ONCE:
            self._idle.append(worker)
        else:
            worker.retire()


async def _wait(worker: _Worker, result: asyncio.Future[Any], seconds: float) -> None:
    """Wait for a result, at most so long; when the waiter is cancelled, its work is stopped."""
    try:
        await asyncio.wait([result], timeout=seconds)
    except asyncio.CancelledError:
        worker.stop()
        result.cancel()
        raise


class _Stopped(BaseException):
    """Raised inside a thread whose work is not wanted any more."""


class _Task(Generic[Result]):
    def __init__(self, work: Callable[[], Result], loop: asyncio.AbstractEventLoop) -> None:
        self._work = work
        self._loop = loop
        self.result: asyncio.Future[Result] = loop.create_future()

    def run(self) -> None:
        try:
            result = self._work()
        except Unrenderable as error:
            self._deliver(self.result.set_exception, error)
        except Exception as error:  # noqa: BLE001 -- handed to whoever waits
            self._deliver(self.result.set_exception, _unrenderable(error))
        except (SystemExit, GeneratorExit, KeyboardInterrupt, asyncio.CancelledError) as error:
            self._deliver(self.result.set_exception, _unrenderable(error))
        else:
            self._deliver(self.result.set_result, result)

    def _deliver(self, settle: Callable[[Any], None], value: object) -> None:
        def settle_if_awaited() -> None:
            if not self.result.done():
                settle(value)

        # The loop may have ended while the work went on.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(settle_if_awaited)


def _unrenderable(error: BaseException) -> Unrenderable:
    return Unrenderable(f"rendering raised {type(error).__name__}")


class _Worker:
    """One thread, which can be told to stop in the middle of its work."""

    def __init__(self) -> None:
        self._tasks: SimpleQueue[_Task[Any] | None] = SimpleQueue()
        self._ended = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._serve, name="render", daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[], Result]) -> asyncio.Future[Result]:
        task = _Task(work, asyncio.get_running_loop())
        self._tasks.put(task)
        return task.result

    def retire(self) -> None:
        self._tasks.put(None)

    def stop(self) -> None:
        """End the thread: at once when it is idle, else at its next step in Python."""
        self.retire()
        with self._lock:
            if self._ended or self._thread.ident is None:
                return
            # A loop inside C code (one regular expression, say) can't be reached by this.
            _raise_in_thread(self._thread.ident)

    def _serve(self) -> None:
        try:
            while (task := self._tasks.get()) is not None:
                task.run()
            with self._lock:
                self._ended = True
        except _Stopped:
            _log.warning("a rendering that took too long has been stopped")


def _raise_in_thread(thread_id: int) -> None:
    """CPython's way to raise in another thread; elsewhere the thread is left to itself."""
    api = getattr(ctypes, "pythonapi", None)
    if api is not None:
        api.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread_id), ctypes.py_object(_Stopped))
