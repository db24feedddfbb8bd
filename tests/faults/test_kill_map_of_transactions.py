"""Kill producers and commands at each statement: before it, when it has been sent, after it.

A producer leaves an order and its job, or neither; then each order has one e-mail. A command that
was killed ends well when it is run again, and leaves what it would have left at once.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import psycopg
import pytest

from outbox import Outbox, schema
from shop_example.database import engine_of
from shop_example.tables import create_tables
from tests.faults import oracle
from tests.faults.commits import (
    BOTH,
    COMMANDS,
    MIGRATE,
    MIGRATE_AGAIN,
    NOT_KILLED_IN,
    NOTHING,
    PRODUCERS,
    PRUNE,
    Transaction,
)
from tests.faults.oracle import Verdict
from tests.faults.orders import payload
from tests.faults.scenarios import PATIENT, WAYS
from tests.faults.transactions import TOPIC, statement_names
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tests.databases import Databases
    from tests.faults.crew import Crew, End, Hand
    from tests.faults.provider import Provider

#: All that the outbox knows.
WHOLE = """
    SELECT json_build_array(
        (SELECT json_agg(row_to_json(job) ORDER BY id) FROM outbox.job),
        (SELECT json_agg(row_to_json(ended) ORDER BY id) FROM outbox.ended_job AS ended),
        (SELECT json_agg(row_to_json(effect) ORDER BY effect_key) FROM outbox.effect)
    )::text
"""
#: What makes up the schema: its relations, columns, constraints and indexes, and its versions.
SCHEMA = """
    SELECT coalesce(string_agg(thing, E'\n' ORDER BY thing), '') FROM (
        SELECT concat_ws(' ', c.relname, c.relkind, a.attname, a.atttypid::regtype) AS thing
        FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0
        WHERE c.relnamespace = to_regnamespace('outbox')
        UNION ALL SELECT pg_get_constraintdef(oid) FROM pg_constraint
        WHERE connamespace = to_regnamespace('outbox')
        UNION ALL SELECT indexdef FROM pg_indexes WHERE schemaname = 'outbox'
    ) AS things
"""
#: A job that ended long ago and left its request frozen, one that will not be old for long, and
#: effects that stay.
ROWS = """
    DELETE FROM outbox.ended_job;
    DELETE FROM outbox.effect;
    INSERT INTO outbox.ended_job (
        id, topic, priority, effect_key, payload, payload_fingerprint, enqueued_at, attempts,
        claim_version, ended_as, reason, ended_at
    )
    SELECT id, 'email.x', 0, key, '{"a": 1}', sha256(''), '2026-01-01', 1, 1, 'dead', 'because',
        ended_at
    FROM (VALUES
        (1001, 'email-old', timestamptz '2026-01-01'),
        (1002, 'email-young', '2999-01-01')
    ) AS ended (id, key, ended_at);
    INSERT INTO outbox.effect (
        effect_key, job_id, claim_version, attempted_by, topic, payload_fingerprint, provider,
        account, wire_key, state, request, open_since, requests_sent, first_attempt_at,
        last_attempt_at, settled_at
    )
    SELECT key, job_id, 1, 'somebody', 'email.x', sha256(''), 'resend', 'default', key, state,
        request, open_since, 1, '2026-01-01', '2026-01-01', settled_at
    FROM (VALUES
        ('email-old', 1001, 'open', 'a'::bytea, NULL::timestamptz, NULL::timestamptz),
        ('email-young', 1002, 'open', 'a', NULL, NULL),
        ('email-held', 1, 'held', 'a', '2026-01-01', NULL),
        ('email-sent', 2, 'delivered', NULL, NULL, '2026-01-01')
    ) AS effect (key, job_id, state, request, open_since, settled_at)
"""
EACH_PRODUCER = pytest.mark.parametrize("way", PRODUCERS, ids=lambda way: way.name)


class Place:
    """A database, and a hand that starts processes at it."""

    def __init__(self, url: str, hand: Hand) -> None:
        self.url = url
        self._hand = hand
        self.connection = psycopg.connect(url, autocommit=True)

    def run(self, way: Transaction, point: str | None = None) -> End:
        """A process on its way, which dies at this point; nothing of it is left when this ends."""
        settings = {"OUTBOX_DATABASE_URL": self.url}
        end = self._hand.run(settings, act_at=point, subject=way.subject, arguments=way.arguments)
        alone = (
            "SELECT count(*) = 1 FROM pg_stat_activity WHERE datname = current_database()"
            " AND backend_type = 'client backend'"
        )
        eventually(lambda: self.ask(alone))
        assert (end.signal, end.code) == ((None, 0) if point is None else ("SIGKILL", None))
        return end

    def ask(self, query: str) -> object:
        """The one value that a query returns."""
        row = self.connection.execute(query.encode()).fetchone()
        assert row is not None
        return row[0]

    def deliver(self, provider: Provider, *topics: str) -> None:
        """Let a consumer live until nothing is left."""
        places = {"OUTBOX_DATABASE_URL": self.url, "EMAIL_API_URL": provider.url}
        settings = {**PATIENT, **places, "FAULTS_TOPICS": ",".join(topics)}
        assert self._hand.run(settings).code == 0

    def told(self, output: Path) -> list[str]:
        """What the command line says of all effects."""
        arguments = ["effects", "list", "--json"]
        settings = {"OUTBOX_DATABASE_URL": self.url}
        self._hand.run(settings, subject="outbox", arguments=arguments, output=output)
        return output.read_text().splitlines()


@pytest.fixture
def empty(databases: Databases, hands: Crew) -> Iterator[Place]:
    """An empty database."""
    yield from _at(databases.create_empty(), databases, hands[0])


@pytest.fixture
def migrated(databases: Databases, hands: Crew) -> Iterator[Place]:
    """A database with the outbox, and the shop with its sample rows."""
    yield from _at(databases.create_migrated(), databases, hands[0])


def _at(url: str, databases: Databases, hand: Hand) -> Iterator[Place]:
    engine = engine_of(url)
    create_tables(engine)
    engine.dispose()
    place = Place(url, hand)
    yield place
    place.connection.close()
    databases.drop(url)


@EACH_PRODUCER
def test_whoever_dies_placing_an_order_leaves_an_order_and_its_job_or_neither(
    way: Transaction, migrated: Place, replaying: Provider, tmp_path: Path
) -> None:
    """A death at each point of the transaction; in the end each order has its one e-mail."""
    found: dict[str, str] = {}
    orders: set[int] = set()
    jobs: set[int] = set()
    for point in way.points:
        migrated.run(way, point)
        new_orders = set(oracle.read_orders(migrated.url)) - orders
        new_jobs = _jobs(migrated) - jobs
        assert new_orders == new_jobs, f"{point}: one without the other"
        found[point] = BOTH if new_orders else NOTHING
        orders, jobs = orders | new_orders, jobs | new_jobs
    assert found == {point: way.truth(point) for point in way.points}

    migrated.deliver(replaying, TOPIC)
    judgement = oracle.judge(
        orders, replaying.record, migrated.told(tmp_path / "told"), drained=True
    )
    assert judgement.verdicts == {
        oracle.KEY.format(order): {Verdict.DELIVERED_ONCE} for order in orders
    }
    assert len(orders) == way.orders * sum(truth == BOTH for truth in found.values())


@EACH_PRODUCER
def test_the_map_names_every_statement_of_a_producer(way: Transaction, migrated: Place) -> None:
    """One that lives writes down each point: the map has them all, in this order."""
    assert list(migrated.run(way).points) == way.points


def test_a_killed_prune_loses_nothing_that_must_stay(
    migrated: Place, replaying: Provider, tmp_path: Path
) -> None:
    """Run again it leaves what one leaves that nobody kills; an order that waits is delivered."""
    with psycopg.connect(migrated.url) as connection:
        Outbox().enqueue(connection, "email.x", payload(), effect_key="email-order-1")
    migrated.connection.execute(ROWS.encode())
    assert list(migrated.run(PRUNE).points) == PRUNE.points
    undisturbed = migrated.ask(WHOLE)
    _, ended, effects = json.loads(str(undisturbed))
    assert [job["effect_key"] for job in ended if job["payload"]] == ["email-young"]
    frozen = [effect["effect_key"] for effect in effects if effect["request"]]
    assert frozen == ["email-held", "email-young"]

    found = {}
    for point in PRUNE.points:
        migrated.connection.execute(ROWS.encode())
        migrated.run(PRUNE, point)
        is_there = migrated.ask("SELECT payload IS NOT NULL FROM outbox.ended_job WHERE id = 1001")
        found[point] = f"the payload is {'there' if is_there else 'gone'}"
        migrated.run(PRUNE)
        assert migrated.ask(WHOLE) == undisturbed, point
    assert found == {point: PRUNE.truth(point) for point in PRUNE.points}
    _assert_delivered_once(migrated, replaying, tmp_path)


@pytest.mark.timeout(300)  # on a busy machine: a schema is made for each death
def test_a_killed_migrate_leaves_no_schema_or_all_of_it(
    empty: Place, replaying: Provider, tmp_path: Path
) -> None:
    """Run again it ends well, and the schema is whole; orders are taken and delivered then."""
    assert list(empty.run(MIGRATE).points) == MIGRATE.points
    whole = empty.ask(SCHEMA)
    found = {}
    for point in MIGRATE.points:
        empty.connection.execute("DROP SCHEMA outbox CASCADE")
        empty.run(MIGRATE, point)
        found[point] = {"": "no schema", whole: "the whole schema"}[empty.ask(SCHEMA)]
        empty.run(MIGRATE)
        assert empty.ask(SCHEMA) == whole, point
        schema.check_url(empty.url)
    assert found == {point: MIGRATE.truth(point) for point in MIGRATE.points}

    with psycopg.connect(empty.url) as connection:
        Outbox().enqueue(connection, "email.x", payload(), effect_key="email-order-1")
    _assert_delivered_once(empty, replaying, tmp_path)


def test_a_killed_migrate_does_nothing_to_a_schema_that_is_there(
    migrated: Place, replaying: Provider, tmp_path: Path
) -> None:
    """The schema stays as it was, and so does the order that waits in it, until it is delivered."""
    with psycopg.connect(migrated.url) as connection:
        Outbox().enqueue(connection, "email.x", payload(), effect_key="email-order-1")
    before = migrated.ask(SCHEMA), migrated.ask(WHOLE)
    assert list(migrated.run(MIGRATE_AGAIN).points) == MIGRATE_AGAIN.points
    for point in MIGRATE_AGAIN.points:
        migrated.run(MIGRATE_AGAIN, point)
        assert (migrated.ask(SCHEMA), migrated.ask(WHOLE)) == before, point
    _assert_delivered_once(migrated, replaying, tmp_path)


def test_every_statement_that_writes_is_on_the_map() -> None:
    """Each file of outbox/sql is a step of some way, or is listed as one that nobody dies in."""
    steps = {
        *(step for scenario, keys in WAYS for step in scenario.steps_of(keeps_keys=keys)),
        *(step for way in (*PRODUCERS, *COMMANDS) for step in way.steps),
    }
    on_the_map = {step.partition("#")[0] for step in steps} & set(statement_names())
    assert on_the_map | NOT_KILLED_IN == set(statement_names())
    assert on_the_map & NOT_KILLED_IN == set()


def _jobs(place: Place) -> set[int]:
    """The orders that have a job, by its key."""
    rows = place.connection.execute("SELECT effect_key FROM outbox.job").fetchall()
    return {int(key.removeprefix(oracle.KEY.format(""))) for (key,) in rows}


def _assert_delivered_once(place: Place, provider: Provider, tmp_path: Path) -> None:
    place.deliver(provider, "email.x")
    told = place.told(tmp_path / "told")
    verdicts: Mapping[str, frozenset[Verdict]] = oracle.judge(
        [1], provider.record, told, drained=True
    ).verdicts
    assert verdicts == {"email-order-1": {Verdict.DELIVERED_ONCE}}
