"""Small contenders on a real database: each of fifty jobs runs exactly once."""

from __future__ import annotations

import psycopg
import pytest

from benchmarks import bare, byhand, consuming, jobs, mailing, pgbench
from benchmarks.crew import crew
from benchmarks.oracle import exactly_once
from benchmarks.provider import provider

JOBS = 50


@pytest.mark.parametrize("request_bytes", [0, 4096])
def test_by_hand(connection: psycopg.Connection, database_url: str, request_bytes: int) -> None:
    """The statements as they ship, with a request to freeze and without."""
    jobs.fill(connection, JOBS)
    done = byhand.drain(database_url, request_bytes=request_bytes, batch=20)
    exactly_once(database_url, JOBS, done)


def test_by_pgbench(connection: psycopg.Connection, database_url: str) -> None:
    """The statements with no Python at all."""
    if pgbench.program() is None:
        pytest.skip("there is no pgbench")
    jobs.fill(connection, JOBS)
    exactly_once(database_url, JOBS, pgbench.drain(database_url, jobs=JOBS, batch=10))


def test_by_a_consumer_process(connection: psycopg.Connection, database_url: str) -> None:
    """With the no-op effect."""
    jobs.fill(connection, JOBS)
    with crew(consuming.drainer, (4096, 20)) as workers:
        _, calls = consuming.drain(workers, database_url)
    exactly_once(database_url, JOBS, calls)


def test_by_a_consumer_that_is_watched(connection: psycopg.Connection, database_url: str) -> None:
    """It tells each call once, by its key, and how much memory it holds."""
    with crew(consuming.recorder, (database_url, 0, 20)) as (worker,):
        with connection.transaction():
            jobs.fill(connection, JOBS)
            jobs.wake(connection)
        came = consuming.arrivals(worker, JOBS, seconds_max=30)
        assert consuming.seen(worker).megabytes > 0
    assert {key for key, _ in came} == {f"k-{number}" for number in range(1, JOBS + 1)}
    exactly_once(database_url, JOBS, len(came))


def test_by_the_e_mail_consumer_over_http(
    connection: psycopg.Connection, database_url: str
) -> None:
    """Each e-mail arrives at the provider once."""
    mailing.fill(connection, JOBS)
    with provider() as there, crew(mailing.drainer, (there.url, 20)) as (worker,):
        worker.tell(database_url)
        assert worker.receive().code == 0
        exactly_once(database_url, JOBS, there.requests(JOBS))


def test_the_bare_loops_send_each_request_once(
    connection: psycopg.Connection, database_url: str
) -> None:
    """That of the transport, with a body and with rendering, and that of the plain client."""
    mailing.fill(connection, JOBS)
    payloads = mailing.payloads(connection)
    body = bare.rendered(payloads)(0)
    with provider() as there:
        for loop, given in (
            (bare.transport, body),
            (bare.rendering_transport, payloads),
            (bare.plain_client, body),
        ):
            with crew(loop, (there.url, 20, given)) as (worker,):
                worker.tell(JOBS)
                worker.receive()
            assert there.requests(JOBS) == JOBS
