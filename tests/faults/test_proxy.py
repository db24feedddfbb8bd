"""The proxy of the fault tests does what it is told, at the byte that it is told."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx
import psycopg
import pytest

from tests.faults.oracle import read_record
from tests.faults.provider import Provider
from tests.faults.proxy import (
    Exchange,
    Fault,
    Proxy,
    Side,
    Way,
    http_proxy,
    postgres_proxy,
    through,
)

MAIL = {"from": "a@shop.example", "to": "b@shop.example", "subject": "x", "text": "y"}


def at(pattern: str, fault: Fault) -> Callable[[Exchange], Fault | None]:
    """Strike exchanges with these words."""
    return lambda exchange: fault if pattern in exchange.text else None


@contextmanager
def proxied(url: str) -> Iterator[tuple[Proxy, psycopg.Connection]]:
    """A connection through a proxy, with a table ``seen`` behind it."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE seen (n int)")
    with postgres_proxy(url) as proxy:
        through_it = through(url, proxy.open("test"))
        with psycopg.connect(through_it, autocommit=True, connect_timeout=5) as connection:
            yield proxy, connection


def count(url: str) -> int:
    """Rows of the table ``seen``."""
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT count(*) FROM seen").fetchone()
        assert row is not None
        return int(row[0])


@pytest.mark.parametrize("prepared", [False, True], ids=["at once", "prepared"])
@pytest.mark.parametrize(
    ("fault", "applied"),
    [
        (Fault(Side.REQUEST, Way.RESET), 0),
        (Fault(Side.REQUEST, Way.RESET, after_bytes=20), 0),
        (Fault(Side.REQUEST, Way.HALF), 0),
        (Fault(Side.ANSWER, Way.RESET), 1),
        (Fault(Side.ANSWER, Way.HALF), 1),
    ],
    ids=lambda value: f"{value.side.value}, {value.way.value}" if isinstance(value, Fault) else "",
)
def test_a_statement_whose_answer_is_cut_off_is_applied_and_one_whose_request_is_cut_off_is_not(
    fault: Fault, applied: int, *, prepared: bool, empty_database_url: str
) -> None:
    """The client sees a broken connection in both cases: it can't tell which."""
    with proxied(empty_database_url) as (proxy, connection):
        insert = "INSERT INTO seen SELECT %s RETURNING n"
        if prepared:
            connection.execute(insert, [1], prepare=True)
        proxy.decide = at("INSERT", fault)
        with pytest.raises(psycopg.OperationalError):
            connection.execute(insert, [2], prepare=prepared)
        assert connection.broken
        assert [struck.fault for struck in proxy.struck] == [fault]
        assert [struck.rows for struck in proxy.struck] == [applied]
    assert count(empty_database_url) == applied + prepared


def test_a_commit_can_lose_its_answer(empty_database_url: str) -> None:
    """It is applied all the same: the row is there."""
    with proxied(empty_database_url) as (proxy, connection):
        connection.autocommit = False
        connection.execute("INSERT INTO seen VALUES (1)")
        proxy.decide = at("COMMIT", Fault(Side.ANSWER, Way.RESET))
        with pytest.raises(psycopg.OperationalError):
            connection.commit()
    assert count(empty_database_url) == 1


def test_in_silence_nothing_is_told_not_even_an_end(empty_database_url: str) -> None:
    """The client waits as long as it likes; the statement was not let through."""
    with proxied(empty_database_url) as (proxy, connection):
        proxy.decide = at("INSERT", Fault(Side.REQUEST, Way.SILENCE))
        connection.pgconn.send_query(b"INSERT INTO seen VALUES (1)")
        connection.pgconn.flush()
        connection.pgconn.nonblocking = 1
        started = time.monotonic()
        while time.monotonic() < started + 0.2:
            connection.pgconn.consume_input()
            assert connection.pgconn.is_busy()
        connection.close()
    assert count(empty_database_url) == 0


def test_a_delayed_answer_comes_late_and_whole(empty_database_url: str) -> None:
    """Nothing is broken by it."""
    with proxied(empty_database_url) as (proxy, connection):
        proxy.decide = at("SELECT 7", Fault(Side.ANSWER, Way.DELAY, seconds=0.2))
        started = time.monotonic()
        assert connection.execute("SELECT 7").fetchone() == (7,)
        assert time.monotonic() - started >= 0.2


def test_a_session_can_be_cut_at_its_start_and_all_of_a_door_at_any_time(
    empty_database_url: str,
) -> None:
    """Each client is known by its name and by its door."""
    with postgres_proxy(empty_database_url) as proxy:
        urls = {door: through(empty_database_url, proxy.open(door)) for door in ("a", "b")}
        proxy.decide = lambda exchange: (
            Fault(Side.REQUEST, Way.RESET) if exchange.client == "unlucky" else None
        )
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(urls["a"], application_name="unlucky")
        with psycopg.connect(urls["a"]) as one, psycopg.connect(urls["b"]) as other:
            assert proxy.cut("a") == 1
            with pytest.raises(psycopg.OperationalError):
                one.execute("SELECT 1")
            assert other.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.parametrize(
    ("fault", "accepted"),
    [
        (Fault(Side.REQUEST, Way.RESET), 0),
        (Fault(Side.REQUEST, Way.HALF), 0),
        (Fault(Side.REQUEST, Way.SILENCE), 0),
        (Fault(Side.ANSWER, Way.RESET), 1),
        (Fault(Side.ANSWER, Way.HALF), 1),
        (Fault(Side.ANSWER, Way.SILENCE), 1),
    ],
    ids=lambda value: f"{value.side.value}, {value.way.value}" if isinstance(value, Fault) else "",
)
def test_an_email_is_accepted_or_not_and_the_client_can_not_tell(
    fault: Fault, accepted: int, replaying: Provider
) -> None:
    """Half of an answer, none of it, or silence until the client's patience ends."""
    with http_proxy(replaying.url) as proxy:
        proxy.decide = at("idempotency-key: k", fault)
        url, headers = f"http://127.0.0.1:{proxy.open()}/emails", {"Authorization": "Bearer x"}
        with httpx.Client(trust_env=False, timeout=0.3) as client:
            assert client.post(url, headers=headers, json=MAIL).status_code == 200
            with pytest.raises(httpx.TransportError):
                client.post(url, headers=headers | {"idempotency-key": "k"}, json=MAIL)
    record = read_record(replaying.record)
    assert record[None].accepted == 1
    assert (record["k"].accepted if "k" in record else 0) == accepted
