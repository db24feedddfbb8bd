"""The intake: when a claim is worth its statement, and what enqueuers are told meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from outbox import intake
from outbox.intake import Intake
from outbox.job import Job
from outbox.lane import Lane
from outbox.outcome import Answer, Meaning
from outbox.under_way import UnderWay

CONCURRENCY = 8
POLL_SECONDS = 1.0


class Queue:
    """Stands for ``Claims``: so many jobs are ready, and each claim is written down."""

    crashed_waiting = False

    def __init__(self) -> None:
        self.scan_due = False
        self.ready = 0
        self.claims: list[int] = []
        self.did: list[str] = []

    async def take(self, limit: int, *, new_work_only: bool) -> Sequence[Job]:
        """Hand out what is there."""
        assert not new_work_only
        self.claims.append(limit)
        self.did.append("claim")
        found = min(limit, self.ready)
        self.ready -= found
        return [_job(number) for number in range(found)]

    async def keep_up(self) -> None:
        """Look through all of it."""
        self.did.append("scan")
        self.scan_due = False


class Row:
    """Stands for ``Wake``: what enqueuers read of this consumer."""

    def __init__(self) -> None:
        self.hint = asyncio.Event()
        self.asleep = False
        self.said: list[str] = []

    def said_asleep(self, _: float) -> bool:
        """Whether the row says so."""
        return self.asleep

    async def note(self, *, sleep_seconds: float) -> None:
        """Write that it sleeps."""
        assert sleep_seconds > POLL_SECONDS
        self.asleep = True
        self.said.append("asleep")

    async def awake(self) -> None:
        """Write that it does not, where the row says so."""
        if self.asleep:
            self.asleep = False
            self.said.append("awake")


class Bench:
    """An intake between a queue and a row, with a clock that is turned by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000.0
        self.queue, self.row, self.under_way = Queue(), Row(), UnderWay()
        self.lane = Lane(CONCURRENCY)
        queue: Any = self.queue
        row: Any = self.row
        self.intake = Intake(
            queue, self.lane, row, self.under_way,
            jobs_max=2 * CONCURRENCY, poll_seconds=POLL_SECONDS,
        )  # fmt: skip
        monkeypatch.setattr(intake, "boot_seconds", lambda: self.now)

    async def take(self) -> int:
        """Claim, and start what was claimed."""
        found = len(await self.intake.take())
        self.under_way.jobs += found
        return found


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A fresh one."""
    return Bench(monkeypatch)


def _job(number: int) -> Job:
    return Job(number, "t", 0, number, f"k-{number}", "{}", b"", 1, "me", 1, None, expired=False)


async def test_an_idle_consumer_claims_at_once(bench: Bench) -> None:
    """One job that comes alone waits for nobody."""
    bench.queue.ready = 1
    assert await bench.take() == 1
    assert bench.queue.claims == [CONCURRENCY]


async def test_a_busy_one_waits_until_half_of_its_slots_are_free(bench: Bench) -> None:
    """A claim for every slot that becomes free would be a statement for each job."""
    bench.queue.ready = 100
    assert await bench.take() == CONCURRENCY
    for answered in range(1, CONCURRENCY // 2):
        bench.under_way.settling = answered
        assert await bench.take() == 0
    bench.under_way.settling = CONCURRENCY // 2
    assert await bench.take() == CONCURRENCY // 2


async def test_a_free_slot_is_filled_soon_whatever_the_others_do(bench: Bench) -> None:
    """Calls that hang keep nobody from the slots that are free for longer than 50 ms."""
    bench.queue.ready = 100
    await bench.take()
    bench.under_way.jobs -= 1
    bench.now += 0.049
    assert await bench.take() == 0
    bench.now += 0.002
    assert await bench.take() == 1


async def test_what_waits_to_be_settled_is_bounded(bench: Bench) -> None:
    """A database that can claim and can't settle does not fill the memory."""
    bench.queue.ready = 100
    for _ in range(5):
        bench.now += 1
        await bench.take()
        bench.under_way.settling = bench.under_way.jobs
    assert bench.under_way.jobs == 2 * CONCURRENCY


async def test_the_end_of_a_call_ends_the_rest_once_a_claim_is_worth_it(bench: Bench) -> None:
    """Not before, so that a loaded consumer does not turn once for each job."""
    bench.queue.ready = 100
    await bench.take()
    assert await bench.take() == 0
    bench.under_way.settling = 1
    bench.intake.slot_free()
    assert not bench.row.hint.is_set()
    bench.under_way.settling = CONCURRENCY // 2
    bench.intake.slot_free()
    assert bench.row.hint.is_set()


async def test_a_rest_with_free_slots_says_so_and_looks_once_more(bench: Bench) -> None:
    """What was committed before enqueuers could know has sent no hint."""
    await bench.take()
    bench.queue.ready = 1
    assert len(await bench.intake.rest()) == 1
    assert bench.row.said == ["asleep"]


@pytest.mark.parametrize("per_second", [1, 25, 80])
async def test_single_jobs_leave_it_asleep(bench: Bench, per_second: int) -> None:
    """A hint for each costs less than looking for the next, and is quicker."""
    bench.row.asleep = True
    for _ in range(200):
        bench.queue.ready = 1
        assert await bench.take() == 1
        bench.under_way.jobs = 0
        bench.now += 1 / per_second
    assert bench.row.said == []


async def test_during_a_flow_no_enqueue_pays_for_a_hint(bench: Bench) -> None:
    """Jobs that come one after the other are found by looking; the quiet after it is said again."""
    bench.row.asleep = True
    for _ in range(200):
        bench.queue.ready = 1
        assert await bench.take() == 1
        bench.under_way.jobs = 0
        bench.now += 0.005
    assert bench.row.said == ["awake"]
    for _ in range(20):
        bench.queue.ready = 2
        assert await bench.take() == 2
        assert await bench.intake.rest() == []
        bench.under_way.jobs = 0
        bench.now += 0.02
    assert bench.row.said == ["awake"]
    bench.now += 0.5
    await bench.take()
    bench.row.hint.set()
    assert await bench.intake.rest() == []
    assert bench.row.said == ["awake", "asleep"]


@pytest.mark.parametrize("ready", [1, 0])
async def test_a_hint_does_not_wait_for_a_scan(bench: Bench, ready: int) -> None:
    """The scan that is due comes right after the claim, without a rest, whether that found a job or
    not; where there was no hint, it comes before the claim.
    """
    bench.queue.scan_due = True
    await bench.take()
    assert bench.queue.did == ["scan", "claim"]
    bench.queue.scan_due, bench.queue.ready = True, ready
    bench.row.hint.set()
    await bench.intake.pause(0)
    assert await bench.take() == ready
    assert bench.intake.dry
    assert await bench.intake.rest() == []
    await bench.take()
    assert bench.queue.did[2:] == ["claim", "scan", "claim"]


async def test_a_crashed_job_waits_for_its_turn_without_turning(bench: Bench) -> None:
    """Until nothing else is under way, and then it is told; no time is spent on asking."""
    bench.queue.crashed_waiting, bench.under_way.jobs = True, 1
    bench.now += 10
    assert await bench.take() == 0
    resting = asyncio.create_task(bench.intake.rest())
    await asyncio.sleep(0.1)
    assert not resting.done()
    bench.intake.nudge()
    assert await resting == []


async def test_a_closed_lane_sleeps_without_a_hint(bench: Bench) -> None:
    """No call can start: enqueuers need not pay for waking it."""
    for number in range(5):
        bench.lane.record(Answer(Meaning.UNAVAILABLE, "http_503"), f"k-{number}", "", bench.now)
    assert bench.lane.down
    bench.queue.ready = 1
    assert await bench.take() == 0
    bench.row.hint.set()
    assert await bench.intake.rest() == []
    assert bench.row.said == []
    assert bench.queue.claims == []
