"""A thread that takes renders from a line, one after the other, and can be told to stop at one."""

from __future__ import annotations

import asyncio
import ctypes
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Final

from outbox.gateway import Unrenderable

#: Tells a worker to end.
END: Final = None


class Render:
    """One piece of work, and the future of its result on the event loop."""

    def __init__(self, work: Callable[[], Any], result: asyncio.Future[Any]) -> None:
        self._work = work
        self.result = result
        self._value: Any = None
        self._error: Unrenderable | None = None

    def run(self) -> None:
        """Do the work, on a worker's thread; raises nothing that the work raises."""
        try:
            self._value = self._work()
        except Unrenderable as error:
            self._error = error
        except _Stopped:
            raise
        except BaseException as error:  # noqa: BLE001 -- handed to whoever waits
            self._error = Unrenderable(f"rendering raised {type(error).__name__}")

    def deliver(self) -> None:
        """Settle the future, on the loop's thread."""
        if self.result.done():
            return
        if self._error is None:
            self.result.set_result(self._value)
        else:
            self.result.set_exception(self._error)


Line = SimpleQueue[Render | None]


class Worker:
    """One thread. ``done`` is told each render that has been run; ``may_leave`` is asked when the
    line is empty.
    """

    def __init__(
        self, line: Line, done: Callable[[Render], None], may_leave: Callable[[Worker], bool]
    ) -> None:
        self._line = line
        self._done = done
        self._may_leave = may_leave
        self._lock = threading.Lock()
        self._takes_no_more = False
        self._stopped = False
        self._render: Render | None = None
        self._seen: Render | None = None
        #: For so many looks, the last one included, it has been at the same render.
        self.looks = 0
        self._thread = threading.Thread(target=self._serve, name="render", daemon=True)
        self._thread.start()

    @property
    def ended(self) -> bool:
        """Whether its thread has ended."""
        return not self._thread.is_alive()

    def look(self) -> Render | None:
        """Look what it is at."""
        render = self._render
        self.looks = 0 if render is None else self.looks + 1 if render is self._seen else 1
        self._seen = render
        return render

    def retire(self) -> None:
        """Let it end after the render that it is at."""
        with self._lock:
            self._takes_no_more = True

    def stop(self, render: Render) -> bool:
        """End it at its next step in Python, if it is at this render still; say whether it was."""
        # Once: whoever is stopped already may hold the lock when it dies, or another one's name.
        if self._render is not render or self._stopped:
            return False
        with self._lock:
            if self._render is not render or self._thread.ident is None:
                return False
            self._takes_no_more = self._stopped = True
            # A loop inside C code (one regular expression, say) can't be reached by this.
            _raise_in_thread(self._thread.ident)
            return True

    def _serve(self) -> None:
        try:
            while (render := self._next()) is not None:
                if not render.result.cancelled():
                    render.run()
                if self._is_over():
                    self._done(render)
            if self._stopped:
                # It comes at the next step (unless the work has swallowed it): not outside the try.
                for _ in range(1000):
                    pass
        except _Stopped:
            return

    def _is_over(self) -> bool:
        """Nobody stops it from here on, neither while it hands over nor in another render; say
        whether nobody has.
        """
        with self._lock:
            self._render = None
            return not self._stopped

    def _next(self) -> Render | None:
        if self._takes_no_more:
            return None
        render = self._take()
        with self._lock:
            self._render = render
        return render

    def _take(self) -> Render | None:
        try:
            return self._line.get_nowait()
        except Empty:
            return None if self._may_leave(self) else self._line.get()


class _Stopped(BaseException):
    """Raised inside a thread whose work is not wanted any more."""


def _raise_in_thread(thread_id: int) -> None:
    """CPython's way to raise in another thread; elsewhere the thread is left to itself."""
    api = getattr(ctypes, "pythonapi", None)
    if api is not None:
        api.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread_id), ctypes.py_object(_Stopped))
