"""Natural batching: what is ready goes together, and one bad item harms nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from outbox.batch import Batch


class BadItem(Exception):
    """What the database says of one item."""


class Press:
    """Runs batches: doubles each number, refuses negative ones, and waits for its gate."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.batches: list[list[int]] = []
        self.entered = asyncio.Semaphore(0)

    async def run(self, items: Sequence[int]) -> list[int]:
        """Double them all, or fail for all of them."""
        self.batches.append(list(items))
        self.entered.release()
        await self.gate.wait()
        if bad := [item for item in items if item < 0]:
            raise BadItem(f"{bad[0]} is bad")
        if 0 in items:
            raise RuntimeError("the press is broken")
        return [2 * item for item in items]


@pytest.fixture
def press() -> Press:
    """A press with its gate open."""
    return Press()


@asynccontextmanager
async def serving(press: Press, limit: int = 100) -> AsyncIterator[Batch[int, int]]:
    """A batch that is served."""
    batch: Batch[int, int] = Batch(press.run, limit=limit, divisible=BadItem)
    service = asyncio.create_task(batch.serve())
    yield batch
    service.cancel()
    await asyncio.gather(service, return_exceptions=True)


async def submit_all(batch: Batch[int, int], *items: int) -> list[int | BaseException]:
    """Submit several at once."""
    return await asyncio.gather(*(batch.submit(item) for item in items), return_exceptions=True)


async def test_a_batch_waits_for_what_is_on_its_way(press: Press) -> None:
    """Not until its patience is over: as soon as there is enough, or the batch is full."""
    on_the_way = 2
    batch: Batch[int, int] = Batch(
        press.run, limit=3, divisible=BadItem, enough=lambda _: on_the_way == 0
    )
    service = asyncio.create_task(batch.serve())
    first = asyncio.create_task(batch.submit(1))
    second = asyncio.create_task(batch.submit(2))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert press.batches == []
    on_the_way = 0
    third = asyncio.create_task(batch.submit(3))
    assert list(await asyncio.gather(first, second, third)) == [2, 4, 6]
    assert press.batches == [[1, 2, 3]]
    on_the_way = 1
    assert await submit_all(batch, 4, 5, 6, 7) == [8, 10, 12, 14]
    assert press.batches == [[1, 2, 3], [4, 5, 6], [7]]
    service.cancel()
    await asyncio.gather(service, return_exceptions=True)


async def test_what_is_ready_together_goes_together(press: Press) -> None:
    """One run for all, each gets its own result."""
    async with serving(press) as batch:
        assert await submit_all(batch, 3, 1, 2) == [6, 2, 4]
    assert press.batches == [[3, 1, 2]]


async def test_a_lone_item_waits_for_nobody(press: Press) -> None:
    """No timer, no minimum."""
    async with serving(press) as batch:
        assert await batch.submit(1) == 2
        assert await batch.submit(2) == 4
    assert press.batches == [[1], [2]]


async def test_what_comes_while_one_is_under_way_waits_for_the_next(press: Press) -> None:
    """In the order in which it came."""
    press.gate.clear()
    async with serving(press) as batch:
        first = asyncio.create_task(batch.submit(1))
        await press.entered.acquire()
        rest = asyncio.create_task(submit_all(batch, 4, 2, 3))
        await asyncio.sleep(0)
        assert press.batches == [[1]]
        press.gate.set()
        assert await first == 2
        assert await rest == [8, 4, 6]
    assert press.batches == [[1], [4, 2, 3]]


async def test_no_batch_is_larger_than_its_limit(press: Press) -> None:
    """The rest goes with the next ones, without being asked again."""
    async with serving(press, limit=3) as batch:
        assert await submit_all(batch, *range(1, 8)) == [2 * item for item in range(1, 8)]
    assert press.batches == [[1, 2, 3], [4, 5, 6], [7]]


async def test_a_bad_item_fails_alone(press: Press) -> None:
    """After the batch has failed each is run alone, in order; the good ones get their results."""
    async with serving(press) as batch:
        one, bad, three = await submit_all(batch, 1, -2, 3)
        assert (one, three) == (2, 6)
        assert isinstance(bad, BadItem)
        assert str(bad) == "-2 is bad"
        assert await batch.submit(5) == 10
    assert press.batches == [[1, -2, 3], [1], [-2], [3], [5]]


async def test_several_bad_items_each_get_their_own_error(press: Press) -> None:
    """Not the error of the first."""
    async with serving(press) as batch:
        errors = await submit_all(batch, -1, -2)
    assert [str(error) for error in errors] == ["-1 is bad", "-2 is bad"]


async def test_a_bad_item_by_itself_is_run_once(press: Press) -> None:
    """There is nothing to divide."""
    async with serving(press) as batch:
        with pytest.raises(BadItem):
            await batch.submit(-1)
    assert press.batches == [[-1]]


async def test_any_other_error_is_everybodys_and_the_service_goes_on(press: Press) -> None:
    """Whoever waited is told; the next batch is served."""
    async with serving(press) as batch:
        errors = await submit_all(batch, 1, 0, 2)
        assert [str(error) for error in errors] == ["the press is broken"] * 3
        assert await batch.submit(5) == 10
    assert press.batches == [[1, 0, 2], [5]]


async def test_an_undivided_error_while_dividing_hits_only_its_own_item(press: Press) -> None:
    """One breaks the press, one is bad, one is good: the first two fail, each for itself."""
    async with serving(press) as batch:
        broken, bad, good = await submit_all(batch, 0, -1, 2)
    assert isinstance(broken, RuntimeError)
    assert isinstance(bad, BadItem)
    assert good == 4


async def test_whoever_stops_waiting_harms_nobody(press: Press) -> None:
    """The item was submitted and is run; its result has nobody to go to."""
    press.gate.clear()
    async with serving(press) as batch:
        waiting = [asyncio.create_task(batch.submit(item)) for item in (1, 2, -3)]
        await press.entered.acquire()
        waiting[0].cancel()
        waiting[2].cancel()
        await asyncio.gather(waiting[0], waiting[2], return_exceptions=True)
        press.gate.set()
        assert await waiting[1] == 4
        assert await batch.submit(5) == 10


async def test_the_end_of_the_service_releases_everybody(press: Press) -> None:
    """Those under way and those in the queue are cancelled, not left waiting for ever."""
    press.gate.clear()
    async with serving(press, limit=1) as batch:
        waiting = [asyncio.create_task(batch.submit(item)) for item in (1, 2, 3)]
        await press.entered.acquire()
    done, pending = await asyncio.wait(waiting, timeout=5)
    assert not pending
    assert all(task.cancelled() for task in done)
    assert press.batches == [[1]]


async def test_a_run_that_loses_a_result_is_a_loud_error() -> None:
    """A statement that returned a row too few must not leave somebody with another's result."""

    async def lossy(items: Sequence[int]) -> list[int]:
        return list(items)[:-1]

    batch: Batch[int, int] = Batch(lossy, limit=100, divisible=BadItem)
    service = asyncio.create_task(batch.serve())
    waiting = [asyncio.create_task(batch.submit(item)) for item in (1, 2)]
    with pytest.raises(ValueError, match="shorter"):
        await service
    done, pending = await asyncio.wait(waiting, timeout=5)
    assert not pending
    assert len(done) == 2


async def test_it_sleeps_while_there_is_nothing_to_do(press: Press) -> None:
    """No run without an item."""
    async with serving(press):
        for _ in range(10):
            await asyncio.sleep(0)
    assert press.batches == []
