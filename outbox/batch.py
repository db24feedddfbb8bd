"""Natural batching: whatever is ready when the connection is free goes in one statement."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Batch(Generic[Item, Result]):
    """Collects items while a statement is under way and hands them on together.

    ``run`` takes a list and returns the results in the same order. When it raises ``divisible``
    for several items, each is run alone, so that one bad item harms nobody else.
    """

    def __init__(
        self,
        run: Callable[[Sequence[Item]], Awaitable[Sequence[Result]]],
        *,
        limit: int,
        divisible: type[Exception],
    ) -> None:
        self._run = run
        self._limit = limit
        self._divisible = divisible
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
                await self._serve_some()
        finally:
            for _, future in self._queue:
                future.cancel()

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
