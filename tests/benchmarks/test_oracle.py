"""The oracle finds what is lost, repeated or too many."""

from __future__ import annotations

import psycopg
import pytest

from benchmarks import byhand, jobs
from benchmarks.oracle import Wrong, exactly_once

JOBS = 5


@pytest.fixture
def drained(connection: psycopg.Connection, database_url: str) -> str:
    """A database in which five jobs ran, each exactly once."""
    jobs.fill(connection, JOBS)
    assert byhand.drain(database_url, request_bytes=0, batch=JOBS) == JOBS
    return database_url


def test_a_clean_run_passes(drained: str) -> None:
    """The word it gives counts the jobs."""
    assert exactly_once(drained, JOBS, JOBS).startswith("5 jobs: 5 calls, 5 effects")


@pytest.mark.parametrize("calls", [JOBS - 1, JOBS + 1])
def test_the_other_sides_count_must_agree(drained: str, calls: int) -> None:
    """A call too few or too many, whatever the ledger says."""
    with pytest.raises(Wrong, match=f"{calls} calls"):
        exactly_once(drained, JOBS, calls)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param("DELETE FROM outbox.effect WHERE effect_key = 'k-1'", id="lost"),
        pytest.param(
            "UPDATE outbox.effect SET requests_sent = 2 WHERE effect_key = 'k-1'", id="repeated"
        ),
        pytest.param(
            "UPDATE outbox.effect SET state = 'rejected' WHERE effect_key = 'k-1'", id="undelivered"
        ),
    ],
)
def test_a_fault_in_the_ledger_is_found(
    drained: str, connection: psycopg.Connection, fault: str
) -> None:
    """Though the other side has counted what it should."""
    assert connection.execute(fault.encode()).rowcount == 1
    with pytest.raises(Wrong):
        exactly_once(drained, JOBS, JOBS)


def test_a_surplus_effect_is_found(drained: str, connection: psycopg.Connection) -> None:
    """One that no job asked for."""
    jobs.remember(connection, 1)
    with pytest.raises(Wrong):
        exactly_once(drained, JOBS, JOBS)


def test_a_job_that_is_left_is_found(drained: str, connection: psycopg.Connection) -> None:
    """It was not worked on."""
    jobs.fill(connection, 1, prefix="left-")
    with pytest.raises(Wrong):
        exactly_once(drained, JOBS, JOBS)


def test_other_keys_are_passed_over(drained: str, connection: psycopg.Connection) -> None:
    """Where the keys that count are named."""
    jobs.fill(connection, 1, prefix="other-")
    exactly_once(drained, JOBS, JOBS, keys="k-%")
