"""Whose fault a failure is, on a loop whose time passes only when nothing else can happen."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from outbox.evidence import GRACE_SECONDS, Evidence

T = TypeVar("T")


class FakeTimeLoop(asyncio.SelectorEventLoop):
    """Jumps to the next timer instead of waiting for it."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        selector: Any = self._selector  # type: ignore[attr-defined]
        self._select = selector.select
        selector.select = self._jump

    def time(self) -> float:
        """The time of this loop alone."""
        return self._now

    def _jump(self, timeout: float | None) -> list[Any]:
        events = self._select(0)
        if not events and timeout:
            self._now += timeout
        return list(events)


def run(story: Coroutine[Any, Any, T]) -> T:
    """Tell a story in fake time."""
    with asyncio.Runner(loop_factory=FakeTimeLoop) as runner:
        return runner.run(story)


async def asked(evidence: Evidence, effect_key: str, started: float = 0.0) -> asyncio.Task[bool]:
    """A failure that waits for its evidence by now."""
    task = asyncio.create_task(evidence.own_fault(effect_key, started))
    await asyncio.sleep(0)
    assert not task.done()
    return task


@pytest.mark.parametrize("real", [True, False])
def test_the_next_answer_from_another_effect_decides(real: bool) -> None:
    """A real one: the failure was the job's own. Another failure: both belong to a run."""

    async def story() -> bool:
        evidence = Evidence()
        failure = await asked(evidence, "poison")
        evidence.record("other", real=real, now=1.0)
        return await failure

    assert run(story()) is real


def test_it_decides_at_once() -> None:
    """Nobody waits for the rest of the grace."""

    async def story() -> float:
        evidence = Evidence()
        failure = await asked(evidence, "poison")
        evidence.record("other", real=True, now=1.0)
        await failure
        return asyncio.get_running_loop().time()

    assert run(story()) == 0


@pytest.mark.parametrize("real", [True, False])
def test_an_answer_of_the_same_effect_says_nothing(real: bool) -> None:
    """A second job of that key may be answered meanwhile."""

    async def story() -> bool:
        evidence = Evidence()
        failure = await asked(evidence, "poison")
        evidence.record("poison", real=real, now=1.0)
        await asyncio.sleep(0)
        assert not failure.done()
        evidence.record("other", real=not real, now=1.0)
        return await failure

    assert run(story()) is not real


@pytest.mark.parametrize(
    ("effect", "ended", "own_fault"),
    [
        ("other", 10.0, True),
        ("other", 15.0, True),
        ("other", 9.9, False),
        ("poison", 15.0, False),
    ],
)
def test_without_a_next_answer_one_during_the_call_decides(
    effect: str, ended: float, own_fault: bool
) -> None:
    """The call began at 10: a real answer of another effect since then shows a working lane."""

    async def story() -> tuple[bool, float]:
        evidence = Evidence()
        evidence.record(effect, real=True, now=ended)
        found = await evidence.own_fault("poison", started=10.0)
        return found, asyncio.get_running_loop().time()

    assert run(story()) == (own_fault, GRACE_SECONDS)


def test_without_any_answer_it_says_nothing_about_the_job() -> None:
    """A lone job on a dead line spends no attempt; nor does one whose mates fail alike."""

    async def story() -> tuple[bool, bool]:
        evidence = Evidence()
        lone = await evidence.own_fault("poison", started=0.0)
        evidence.record("other", real=False, now=1.0)
        return lone, await evidence.own_fault("poison", started=0.0)

    assert run(story()) == (False, False)


def test_a_failure_during_the_call_is_no_real_answer() -> None:
    """Only real ones are remembered."""

    async def story() -> bool:
        evidence = Evidence()
        for number in range(10):
            evidence.record(f"other-{number}", real=False, now=20.0)
        return await evidence.own_fault("poison", started=10.0)

    assert not run(story())


def test_a_run_of_failures_clears_all_of_them() -> None:
    """As the consumer tells it: each answer is recorded, then each failure asks."""

    async def failed(evidence: Evidence, key: str) -> bool:
        evidence.record(key, real=False, now=1.0)
        return await evidence.own_fault(key, started=0.0)

    async def story() -> list[bool]:
        evidence = Evidence()
        return await asyncio.gather(*(failed(evidence, f"e-{number}") for number in range(5)))

    assert run(story()) == [False] * 5


def test_one_real_answer_decides_all_that_wait() -> None:
    """Each of them failed alone among real answers."""

    async def story() -> list[bool]:
        evidence = Evidence()
        failures = [await asked(evidence, f"e-{number}") for number in range(3)]
        evidence.record("other", real=True, now=1.0)
        evidence.record("another", real=False, now=1.0)
        return await asyncio.gather(*failures)

    assert run(story()) == [True] * 3


def test_whoever_stops_asking_leaves_nothing_behind() -> None:
    """A consumer that is cancelled in the middle; later answers don't stumble over it."""

    async def story() -> int:
        evidence = Evidence()
        failure = await asked(evidence, "poison")
        failure.cancel()
        await asyncio.gather(failure, return_exceptions=True)
        evidence.record("other", real=True, now=1.0)
        return len(evidence._waiting)

    assert run(story()) == 0


def test_the_memory_is_bounded() -> None:
    """A consumer that runs for a year remembers the last few answers."""

    async def story() -> int:
        evidence = Evidence()
        for number in range(10_000):
            evidence.record(f"e-{number}", real=True, now=float(number))
        return len(evidence._real)

    assert run(story()) < 100


@pytest.mark.parametrize("grace", [0.05, 3.0])
def test_the_grace_can_be_chosen(grace: float) -> None:
    """Longer says little more about the moment."""

    async def story() -> float:
        await Evidence(grace).own_fault("poison", started=0.0)
        return asyncio.get_running_loop().time()

    assert run(story()) == pytest.approx(grace)


def test_one_call_at_a_time_the_next_failure_is_the_witness() -> None:
    """Nobody answers while it waits; others that were answered between two failures decide."""

    async def story() -> list[bool]:
        evidence = Evidence()
        first = await evidence.own_fault("poison", 1.0, others=False)
        evidence.record("other", real=True, now=2.0)
        second = await evidence.own_fault("poison", 3.0, others=False)
        third = await evidence.own_fault("poison", 5.0, others=False)
        return [first, second, third]

    assert run(story()) == [False, True, False]


def test_one_call_at_a_time_an_outage_charges_nobody() -> None:
    """Failures without a real answer between them say nothing, however many there are."""

    async def story() -> bool:
        evidence = Evidence()
        for second in range(20):
            if await evidence.own_fault("poison", float(second), others=False):
                return True
            evidence.record("other", real=False, now=second + 0.5)
        return False

    assert not run(story())
