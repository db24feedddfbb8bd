"""Many jobs in one statement a thousand: as if each had been enqueued, on whatever connection."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from inspect import isawaitable
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from outbox import InvalidJob, NewJob, Outbox, WrongConnection
from tests.databases import Databases
from tests.producers import KINDS, TOPIC, Producer

MOMENT = datetime(2126, 7, 1, 12, 0, 0, 1, tzinfo=UTC)
#: Every shape of argument that ends in another column or state.
ODD: tuple[dict[str, Any], ...] = (
    {"payload": {"text": "Grüße ☕ %s :x '\" \\", "n": 2**70, "zero": -0.0, "nul": "\\u0000"}},
    {"available_at": MOMENT, "max_attempts": 7},
    {"available_at": datetime(2020, 1, 1, tzinfo=UTC), "priority": -32_768},
    {"expires_at": MOMENT, "priority": 32_767},
    {"ordering_key": "customer 7 ☕"},
    {"ordering_key": "customer 8", "available_at": MOMENT},
)
COLUMNS = """
SELECT topic, priority, position IS NULL AS waits, position = id AS at_its_id, effect_key,
    payload::text, payload_fingerprint, ordering_key, max_attempts, available_at, expires_at,
    waiting, attempts, claim_version, retry_first
FROM outbox.job WHERE topic = %s ORDER BY id
"""


@pytest.fixture(scope="module")
def database_url(databases: Databases) -> Iterator[str]:
    """One database for this file."""
    url = databases.create_migrated()
    yield url
    databases.drop(url)


@pytest.fixture(autouse=True)
def no_rows(connection: psycopg.Connection[Any]) -> None:
    """Begin with an empty queue."""
    connection.execute("TRUNCATE outbox.job, outbox.consumer")


@pytest.fixture(params=KINDS)
async def producer(request: pytest.FixtureRequest, database_url: str) -> AsyncIterator[Producer]:
    """A caller of each kind that enqueue takes."""
    async with KINDS[request.param](database_url) as producer:
        yield producer


def new_jobs(count: int) -> Iterator[NewJob]:
    """As many, each with its number in its payload."""
    for number in range(count):
        yield NewJob(payload={"n": number}, effect_key=f"e-{number}")


async def test_each_is_as_if_it_had_been_enqueued_alone(
    producer: Producer, connection: psycopg.Connection[Any]
) -> None:
    """All columns are the same, whichever way a job took and whatever carries it."""
    odd: list[dict[str, Any]] = [
        {"payload": {"n": n}, "effect_key": f"e-{n}"} | given for n, given in enumerate(ODD)
    ]
    given: Any = Outbox().enqueue_many(
        producer.caller, "many.jobs", [NewJob(**arguments) for arguments in odd]
    )
    ids = await given if isawaitable(given) else given
    for arguments in odd:
        await producer.enqueue(**arguments, topic="one.job")
    await producer.commit()
    assert ids == sorted(ids)
    with connection.cursor(row_factory=dict_row) as cursor:
        many = cursor.execute(COLUMNS, ["many.jobs"]).fetchall()
        one = cursor.execute(COLUMNS, ["one.job"]).fetchall()
    assert [row | {"topic": ""} for row in many] == [row | {"topic": ""} for row in one]


def test_a_hundred_thousand_keep_their_order(
    database_url: str, connection: psycopg.Connection[Any]
) -> None:
    """No limit of a protocol is met, and ids, positions and the answer are in the order given."""
    with psycopg.connect(database_url) as producing:
        ids = Outbox().enqueue_many(producing, TOPIC, new_jobs(100_000))
    rows = connection.execute(
        "SELECT id, position, (payload->>'n')::int FROM outbox.job ORDER BY id"
    ).fetchall()
    assert rows == [(id_, id_, number) for number, id_ in enumerate(ids)]
    assert len(rows) == 100_000


def test_large_ones_go_a_few_at_a_time(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What one statement carries stays some MB, whatever the jobs hold: it lies in memory several
    times over, and of 1 GB in one value PostgreSQL breaks the connection.
    """
    sent: list[int] = []

    class Counting(psycopg.Cursor[Any]):
        def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
            sent.append(len(params["jobs"]))
            return super().execute(query, params, **options)

    # One byte each in a payload, and six in the JSON around it.
    large = [NewJob(payload={"t": "\x7f" * 40_000}, effect_key=f"large-{n}") for n in range(60)]
    with psycopg.connect(database_url) as producing:
        monkeypatch.setattr("psycopg.Cursor", Counting)
        ids = Outbox().enqueue_many(producing, TOPIC, [*large, *new_jobs(1)])
        assert len(set(ids)) == 61
    assert len(sent) == 4
    assert max(sent) <= 4 * 1024**2 + 1000


def test_one_that_is_wrong_refuses_all_before_any_sql(database_url: str) -> None:
    """The error names the job and the field, and the transaction goes on."""
    jobs = [*new_jobs(2_500), NewJob(payload={"price": float("nan")}, effect_key="e")]
    with psycopg.connect(database_url) as producing:
        with pytest.raises(InvalidJob, match=r"^jobs\[2500\]\.payload\.price: nan is no"):
            Outbox().enqueue_many(producing, TOPIC, jobs)
        assert producing.execute("SELECT count(*) FROM outbox.job").fetchone() == (0,)


async def test_none_are_no_statement(producer: Producer) -> None:
    """An empty list is no error."""
    given: Any = Outbox().enqueue_many(producer.caller, TOPIC, [])
    assert (await given if isawaitable(given) else given) == []
    await producer.commit()


def test_autocommit_is_refused(database_url: str) -> None:
    """There is no transaction that the jobs could share with anything."""
    with (
        psycopg.connect(database_url, autocommit=True) as producing,
        pytest.raises(WrongConnection, match="autocommit"),
    ):
        Outbox().enqueue_many(producing, TOPIC, new_jobs(1))


@pytest.mark.parametrize(
    ("given", "notify", "woken"),
    [({}, True, 1), ({"available_at": MOMENT}, True, 0), ({}, False, 0)],
    ids=["ready", "for later", "switched off"],
)
def test_all_of_them_wake_once(
    database_url: str,
    connection: psycopg.Connection[Any],
    given: dict[str, Any],
    notify: bool,
    woken: int,
) -> None:
    """A consumer that sleeps is called once for all that is ready, not for what is for later."""
    connection.execute(
        "INSERT INTO outbox.consumer (claimed_by, topics, seen_until, sleeps_until)"
        " VALUES ('sleeper', %s, 'infinity', 'infinity')",
        [[TOPIC]],
    )
    with psycopg.connect(database_url, autocommit=True) as listening:
        listening.execute("LISTEN outbox_ready")
        with psycopg.connect(database_url) as producing:
            jobs = [NewJob(payload={}, effect_key=f"e-{n}", **given) for n in range(2_500)]
            Outbox(notify=notify).enqueue_many(producing, TOPIC, jobs)
        connection.execute("SELECT pg_notify('outbox_ready', '(after)')")
        found = [one.payload for one in listening.notifies(timeout=10, stop_after=woken + 1)]
    assert found == [TOPIC] * woken + ["(after)"]
