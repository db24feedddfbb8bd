"""Runs an application's rendering where it can neither block the consumer nor run for ever.

Always on a thread: nobody can know beforehand which payload makes a function loop. One thread takes
whatever waits, one render after the other, and hands back together what it has by then: a hand-over
there and back costs as much as the render of two small templates.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Final, TypeVar

from consumers.email.render_worker import END, Line, Render, Worker
from outbox.gateway import Unrenderable

_log = logging.getLogger(__name__)
Result = TypeVar("Result")

#: A render takes about a millisecond; one that takes this long loops.
RENDER_SECONDS_MAX: Final = 2.0
#: So many threads at most take from the line. They share the interpreter: it is one, but for a
#: while after renders that loop.
_AT_ONCE: Final = 4
#: How often a worker is looked at. One that is at the same render for two looks leaves the line to
#: another.
_LOOK_SECONDS: Final = 0.1


class Renderer:
    """Runs functions on threads of its own, each within ``seconds_max`` or little more."""

    def __init__(self, seconds_max: float = RENDER_SECONDS_MAX) -> None:
        self._seconds_max = seconds_max
        self._look_seconds = min(_LOOK_SECONDS, seconds_max / 2)
        self._line: Line = SimpleQueue()
        self._lock = threading.Lock()
        self._serving: list[Worker] = []
        self._slow: list[Worker] = []
        self._done: deque[Render] = deque()
        self._handing_back = False
        self._awaited = 0
        self._watch: asyncio.TimerHandle | None = None

    async def run(self, work: Callable[[], Result]) -> Result:
        """Return what ``work`` returns.

        Raises:
            Unrenderable: it raised this, raised something else, or took too long. The thread of
                one that took too long is told to stop at its next step in Python.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()
        render = Render(work, future)
        self._awaited += 1
        self._line.put(render)
        if not self._serving:
            self._hire(1)
        self._keep_watch()
        try:
            return await future
        except asyncio.CancelledError:
            self._stop(render)
            raise
        finally:
            self._awaited -= 1

    def close(self) -> None:
        """Let the idle threads end."""
        if self._watch is not None:
            self._watch.cancel()
        for _ in self._serving + self._slow:
            self._line.put(END)

    def _hire(self, count: int) -> None:
        """Hire workers for what waits in the line; where no thread can be started now, the next
        look tries again.
        """
        try:
            for _ in range(min(count, self._line.qsize())):
                self._hire_one()
        except RuntimeError as error:
            _log.error("no thread for rendering: %s; trying again", error)

    def _hire_one(self) -> None:
        loop = asyncio.get_running_loop()

        def done(render: Render) -> None:
            self._done.append(render)
            if not self._handing_back:
                self._handing_back = True
                # The loop may have ended while the work went on.
                with suppress(RuntimeError):
                    loop.call_soon_threadsafe(self._hand_back)

        with self._lock:
            self._serving.append(Worker(self._line, done, self._may_leave))

    def _hand_back(self) -> None:
        # First: what is done from here on asks for another hand-over.
        self._handing_back = False
        while self._done:
            self._done.popleft().deliver()

    def _may_leave(self, worker: Worker) -> bool:
        """Whether a worker that finds the line empty may end: another one serves it."""
        with self._lock:
            if self._serving == [worker]:
                return False
            if worker in self._serving:
                self._serving.remove(worker)
            return True

    def _keep_watch(self) -> None:
        if self._watch is None and self._awaited:
            self._watch = asyncio.get_running_loop().call_later(self._look_seconds, self._look)

    def _look(self) -> None:
        """Look at each worker, for as long as anything is awaited.

        Looks are counted, not seconds: while the whole process is stopped there are none, and no
        render is given up for that.
        """
        self._watch = None
        self._keep_watch()
        for worker in self._serving + self._slow:
            self._judge(worker)
        self._slow = [worker for worker in self._slow if not worker.ended]
        slow = [worker for worker in self._serving if worker.looks >= 2]
        for worker in slow:
            worker.retire()
            self._leave(worker)
            self._slow.append(worker)
        self._hire(min(2 * len(slow), _AT_ONCE) or int(not self._serving))

    def _judge(self, worker: Worker) -> None:
        ended, render = worker.ended, worker.look()
        if ended:
            self._leave(worker)
        if render is None or render.result.done():
            return
        if ended:
            render.result.set_exception(Unrenderable("the thread of its rendering ended"))
        elif worker.looks * self._look_seconds > self._seconds_max:
            self._stop(render)
            reason = f"rendering took longer than {self._seconds_max:g} s"
            render.result.set_exception(Unrenderable(reason))

    def _stop(self, render: Render) -> None:
        """Stop a worker that is at this render; where it served the line, another one does."""
        for worker in self._serving + self._slow:
            if worker.stop(render):
                # Not on its own thread, which would take a lock of the logging with it.
                _log.warning("a rendering that took too long is stopped")
                if self._leave(worker):
                    self._hire(1)
                return

    def _leave(self, worker: Worker) -> bool:
        """Take a worker from those that serve the line; say whether it was one of them."""
        with self._lock:
            serves = worker in self._serving
            if serves:
                self._serving.remove(worker)
            return serves
