"""What the model leaves out: two jobs of one key that are settled in one statement."""

from __future__ import annotations

from dataclasses import replace

import psycopg
import pytest

from outbox import Outbox
from outbox.backoff import Backoff
from outbox.outcome import Outcome, Policy
from outbox.settle import Settlement
from tests.promises.by_hand import ByHand, delivered
from tests.promises.scripted import TOPIC

NO_KEYS = Policy(None, False, 5, Backoff(0.01, 0.05))
LAPSE = "UPDATE outbox.job SET lease_until = clock_timestamp() - interval '1 s' WHERE id = %s"
STATES = "SELECT state, job_id, provider_message_id FROM outbox.effect"


@pytest.mark.parametrize("accepted_first", [True, False])
@pytest.mark.parametrize("lower_id", [True, False], ids=["lower id", "higher id"])
async def test_an_acceptance_in_hand_wins_over_a_hold_in_the_same_batch(
    connection: psycopg.Connection, database_url: str, *, lower_id: bool, accepted_first: bool
) -> None:
    """A consumer was stopped for a while: its call was accepted, and its other job of the key, that
    knows only that the lease of the first has run out, would hold the effect.
    """
    with connection.transaction():
        for _ in range(2):
            Outbox().enqueue(connection, TOPIC, {}, effect_key="email-order-102")
    async with ByHand(database_url, policy=NO_KEYS) as one:
        jobs = sorted(await one.claim(2), key=lambda job: job.id, reverse=not lower_id)
        accepted, other = jobs
        attempt = await one.begun(accepted)
        connection.execute(LAPSE, [accepted.id])
        hold = await one.begin(other)
        assert isinstance(hold, Outcome)
        assert hold.reason == "no_memory"

        batch = [Settlement(accepted, delivered(attempt)), Settlement(other, hold)]
        if not accepted_first:
            batch.reverse()
        settled = await one.settler.settle(batch)

    written = {
        given.job.id: each.effect_written for given, each in zip(batch, settled, strict=True)
    }
    assert written == {accepted.id: True, other.id: False}
    assert connection.execute(STATES).fetchall() == [("delivered", accepted.id, "accepted-id")]
    rows = connection.execute("SELECT id, waiting, attempts FROM outbox.job").fetchall()
    assert rows == [(other.id, None, 0)], "the other asks the ledger again, unspent"


async def test_two_acceptances_of_one_key_in_one_batch_leave_no_job_unaccounted_for(
    connection: psycopg.Connection, database_url: str
) -> None:
    """A provider that replays keys accepts both; one is delivered, the other ends as duplicate."""
    with connection.transaction():
        for _ in range(2):
            Outbox().enqueue(connection, TOPIC, {}, effect_key="email-order-102")
    async with ByHand(database_url) as one:
        first, second = await one.claim(2)
        attempt = await one.begun(first)
        connection.execute(LAPSE, [first.id])
        again = await one.begun(second)
        await one.settler.settle(
            [Settlement(first, delivered(attempt)), Settlement(second, delivered(again))]
        )
        (left,) = await one.claim()
        outcome = await one.begin(left)
        assert isinstance(outcome, Outcome)
        await one.settle(left, replace(outcome, detail=None))

    assert connection.execute("SELECT count(*) FROM outbox.job").fetchone() == (0,)
    ((state, job_id, _),) = connection.execute(STATES).fetchall()
    ended = connection.execute("SELECT id, ended_as FROM outbox.ended_job").fetchall()
    assert state == "delivered"
    assert {job_id} | {id_ for id_, _ in ended} == {first.id, second.id}
