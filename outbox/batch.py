"""Natural batching: whatever is ready when the connection is free goes in one statement.

Where more is known to be on its way, a statement waits for it a little: a round trip costs about as
much as twenty jobs in one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

#: A batch waits at most so long for what is on its way.
_PATIENCE_SECONDS = 0.02


class Batch(Generic[Item, Result]):
    """Collects items while a statement is under way and hands them on together.

    ``run`` takes a list and returns the results in the same order. When it raises ``divisible``
    for several items, each is run alone, so that one bad item harms nobody else. ``enough`` is told
    how many wait, and says whether that many are worth a statement by now.
    """

    def __init__(
        self,
        run: Callable[[Sequence[Item]], Awaitable[Sequence[Result]]],
        *,
        limit: int,
        divisible: type[Exception],
        enough: Callable[[int], bool] = bool,
    ) -> None:
        self._run = run
        self._limit = limit
        self._divisible = divisible
        self._enough = enough
        self._queue: deque[tuple[Item, asyncio.Future[Result]]] = deque()
        self._some = asyncio.Event()

    async def submit(self, item: Item) -> Result:
        """Put an item in the next batch and wait for its result; raises what its run raised."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._queue.append((item, future))
        self._some.set()
        return await future

    async def serve(self) -> None:
        """Run batches until cancelled; whoever still waits then is cancelled too."""
        try:
            while True:
                await self._some.wait()
                if not self._enough_wait():
                    await self._gather()
                await self._serve_some()
        finally:
            for _, future in self._queue:
                future.cancel()

    def _enough_wait(self) -> bool:
        waiting = len(self._queue)
        return waiting >= self._limit or self._enough(waiting)

    async def _gather(self) -> None:
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                while not self._enough_wait():
                    self._some.clear()
                    await self._some.wait()
        except TimeoutError:
            return

    async def _serve_some(self) -> None:
        taken = [self._queue.popleft() for _ in range(min(self._limit, len(self._queue)))]
        if not self._queue:
            self._some.clear()
        try:
            await self._serve(taken)
        finally:
            for _, future in taken:
                future.cancel()

    async def _serve(self, taken: Sequence[tuple[Item, asyncio.Future[Result]]]) -> None:
        try:
            results = await self._run([item for item, _ in taken])
        except self._divisible as error:
            if len(taken) == 1:
                _fail(taken[0][1], error)
                return
            for one in taken:
                await self._serve([one])
        except Exception as error:  # noqa: BLE001 - whatever it is belongs to those who wait
            for _, future in taken:
                _fail(future, error)
        else:
            for (_, future), result in zip(taken, results, strict=True):
                if not future.done():
                    future.set_result(result)


def _fail(future: asyncio.Future[Result], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
