"""The oracle says what a hand-made record says, and imports nothing of what it judges."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.faults import oracle
from tests.faults.oracle import Judgement, Verdict, judge, read_orders, read_record, read_told

KEY = "email-order-7"


class Record:
    """A mail service's record, written line by line as docs/mail-service.md has it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._numbers = count(1)
        self._connections = count(1)
        self._lines: list[str] = []
        self.restart()

    def restart(self) -> None:
        self.write("opened", format=1, pid=1, keeps_keys=True, key_window_seconds=86400.0)

    def request(
        self,
        key: str | None = KEY,
        *,
        accepted: bool = False,
        replayed: bool = False,
        decided: bool = True,
        fault: str | None = None,
        name: str | None = None,
        body: str = "b0d1",
        path: str = "/emails",
    ) -> int:
        """A whole request and, unless told otherwise, its decision; returns its connection."""
        seq, connection = next(self._numbers), next(self._connections)
        self.write(
            "received", clock=0.0, seq=seq, connection=connection, method="POST", path=path,
            key=key, body_sha256=body, body_bytes=9, to=["ada@example.com"], subject="Order 7",
        )  # fmt: skip
        if decided:
            self.write(
                "decided", clock=0.0, seq=seq, key=key, accepted=accepted, replayed=replayed,
                email_id="id" if accepted else None, status=200, name=name, fault=fault,
                fingerprint="f", mail=None,
            )  # fmt: skip
        return connection

    def close(self, connection: int, *, answered: bool = True, by: str = "client") -> None:
        self.write("closed", connection=connection, answered=answered, by=by, reset=False)

    def cut(self, key: str | None = KEY) -> None:
        self.write("cut", connection=next(self._connections), path="/emails", key=key, body_bytes=3)

    def write(self, event: str, **values: object) -> None:
        self._lines.append(json.dumps({"event": event, "at": 0.0, **values}) + "\n")
        self.path.write_text("".join(self._lines))


Judge = Callable[..., Judgement]


@pytest.fixture
def record(tmp_path: Path) -> Record:
    """An empty record."""
    return Record(tmp_path / "mails.jsonl")


@pytest.fixture
def verdict(record: Record) -> Callable[..., set[str]]:
    """The verdicts on order 7, as words."""

    def say(*states: str, drained: bool = True, faults: int = 0, **told: Any) -> set[str]:
        lines = [json.dumps({"effect_key": KEY, "state": state, **told}) for state in states]
        found = judge([7], record.path, lines, drained=drained, faults={7: faults})
        return {verdict.value for verdict in found.verdicts[KEY]}

    return say


Say = Callable[..., set[str]]


def test_one_accepted_request_is_delivered_once(record: Record, verdict: Say) -> None:
    """The plain way."""
    record.request(accepted=True)

    assert verdict("delivered") == {"delivered once"}


def test_a_repeat_after_a_fault_is_no_surplus(record: Record, verdict: Say) -> None:
    """A fault explains one request more, and a replay is no second e-mail."""
    record.request(accepted=True, fault="drop_after_accept")
    record.request(replayed=True)

    assert verdict("delivered") == {"delivered once"}


def test_two_accepted_requests_are_duplicated_even_before_the_drain(
    record: Record, verdict: Say
) -> None:
    """No drain can take the second e-mail back."""
    record.request(accepted=True, fault="stall")
    record.request(accepted=True)

    assert verdict("delivered") == {"duplicated"}
    assert verdict(drained=False) == {"duplicated"}


@pytest.mark.parametrize("states", [(), ("done",), ("delivered",)])
def test_no_accepted_request_is_lost_whatever_is_said_of_it(
    record: Record, verdict: Say, states: tuple[str, ...]
) -> None:
    """A ledger that says delivered proves nothing."""
    assert verdict(*states) == {"lost"}


@pytest.mark.parametrize("drained", [True, False])
def test_without_a_drain_or_while_a_job_waits_it_cant_say(
    record: Record, verdict: Say, *, drained: bool
) -> None:
    """What is still in the queue is neither lost nor delivered."""
    states = ("ready",) if drained else ()

    assert verdict(*states, drained=drained) == {"can't say"}
    record.request(accepted=True)
    assert verdict(*states, drained=drained) == {"can't say"}


def test_a_request_under_a_key_of_no_order_is_sent_without_an_order(record: Record) -> None:
    """Also one without any key; requests to other paths are no e-mails."""
    record.request("email-order-8", accepted=True)
    record.request(None, accepted=True)
    record.request("email-order-9", path="/redirected")

    found = judge([7], record.path, [], drained=True)

    assert set(found.bad) == {KEY, "email-order-8", "(no key)"}
    assert found.verdicts["(no key)"] == {Verdict.SENT_WITHOUT_ORDER}


def test_a_repeat_that_nothing_explains_is_surplus(record: Record, verdict: Say) -> None:
    """Unless a process that lives is known to have lost its lease, or was killed."""
    record.request(accepted=True)
    record.request(replayed=True)

    assert verdict("delivered") == {"surplus requests", "delivered once"}
    assert verdict("delivered", faults=1) == {"delivered once"}


def test_a_repeat_while_the_first_is_in_progress_is_surplus(record: Record, verdict: Say) -> None:
    """Two of us were at work on it."""
    record.request(decided=False)
    record.request(accepted=True)

    assert "surplus requests" in verdict("delivered")


@pytest.mark.parametrize("name", ["rate_limit_exceeded", "concurrent_idempotent_requests"])
def test_a_repeat_after_a_refusal_is_no_surplus(record: Record, verdict: Say, name: str) -> None:
    """It was asked to come later."""
    record.request(name=name)
    record.request(accepted=True)

    assert verdict("delivered") == {"delivered once"}


def test_a_repeat_after_the_client_has_gone_is_no_surplus(record: Record, verdict: Say) -> None:
    """Its connection is gone: it may have died before it had settled."""
    record.close(record.request(accepted=True))
    record.request(replayed=True)

    assert verdict("delivered") == {"delivered once"}


def test_a_connection_that_closes_after_the_repeat_explains_nothing(
    record: Record, verdict: Say
) -> None:
    """Every client goes at last."""
    connection = record.request(accepted=True)
    record.request(replayed=True)
    record.close(connection)

    assert "surplus requests" in verdict("delivered")


@pytest.mark.parametrize("decided", [True, False])
def test_a_repeat_after_a_restart_of_the_provider_is_no_surplus(
    record: Record, verdict: Say, *, decided: bool
) -> None:
    """What was in progress is forgotten, and an answer may have been cut off."""
    record.request(accepted=decided, decided=decided)
    record.restart()
    record.request(accepted=not decided, replayed=decided)

    assert verdict("delivered") == {"delivered once"}


@pytest.mark.parametrize(
    "happened",
    [
        lambda record: record.request(accepted=True, fault="stall"),
        lambda record: record.request(decided=False),
        lambda record: record.close(record.request(accepted=True), answered=False),
        lambda record: record.request(name="invalid_idempotent_request"),
        lambda record: record.cut(),
    ],
    ids=["fault", "undecided", "client gone unanswered", "key taken", "cut"],
)
def test_held_with_a_request_in_doubt_is_as_it_should_be(
    record: Record, verdict: Say, happened: Callable[[Record], object]
) -> None:
    """Somebody can't know whether it was accepted."""
    happened(record)

    assert verdict("held") == {"held, a request may have left"}


def test_held_though_the_provider_has_answered_cleanly_is_without_reason(
    record: Record, verdict: Say
) -> None:
    """The answer went out while the client was there, so that a fault of ours must be known."""
    record.close(record.request(accepted=True), by="service")

    assert verdict("held") == {"held without reason"}
    assert verdict("held", faults=1) == {"held, a request may have left"}


def test_held_though_no_request_was_ever_seen_is_without_reason(verdict: Say) -> None:
    """Nothing has left, and nobody was killed on the way."""
    assert verdict("held") == {"held without reason"}
    assert verdict("held", faults=1) == {"held, a request may have left"}


@pytest.mark.parametrize("state", ["dead", "cancelled", "rejected", "given_up"])
def test_an_order_that_ended_without_an_email_is_accounted_for(
    record: Record, verdict: Say, state: str
) -> None:
    """Somebody is told of it."""
    record.request(name="validation_error")

    assert verdict(state) == {"dead or cancelled, and not sent"}


def test_dead_means_surely_not_sent(record: Record, verdict: Say) -> None:
    """An accepted e-mail of a dead order is a lie; one that a person gave up is not."""
    record.request(accepted=True, fault="stall")

    assert verdict("dead", "rejected", drained=False) == {"dead or cancelled, but sent"}
    assert verdict("given_up", "dead") == {"delivered once"}
    assert verdict("delivered", "dead") == {"delivered once"}


def test_a_repeat_with_other_bytes_is_told(record: Record, verdict: Say) -> None:
    """The same key carries the same bytes."""
    record.request(fault="503_before")
    record.request(accepted=True, body="0ther")

    assert verdict("delivered") == {"repeated with other bytes", "delivered once"}


def test_more_requests_than_the_ledger_has_begun_are_told(record: Record, verdict: Say) -> None:
    """requests_sent is an upper bound of what arrives."""
    record.request(fault="503_before")
    record.request(accepted=True)

    assert verdict("delivered", requests_sent=2) == {"delivered once"}
    assert "more requests than the ledger has begun" in verdict("delivered", requests_sent=1)


def test_the_namespace_stands_before_the_key_on_the_wire(record: Record) -> None:
    """The command line names the key, the record what was sent."""
    record.request(f"stage-{KEY}", accepted=True)

    found = judge([7], record.path, [], drained=True, namespace="stage")

    assert found.verdicts == {KEY: {Verdict.DELIVERED_ONCE}}


def test_totals_name_every_verdict_and_each_bad_key(record: Record) -> None:
    """What is printed is what a run reports."""
    record.request(accepted=True)

    found = judge([7, 8], record.path, [], drained=True)

    assert str(found).splitlines()[:2] == [
        "email-order-8: lost",
        "1 requests, 1 e-mails accepted",
    ]
    assert found.totals == {Verdict.DELIVERED_ONCE: 1, Verdict.LOST: 1}
    assert found.bad == {"email-order-8": {Verdict.LOST}}
    assert all(verdict.value in str(found) for verdict in Verdict)


def test_a_torn_last_line_is_left_out_and_unknown_kinds_are_passed_over(record: Record) -> None:
    """No answer was based on a line without its end."""
    record.write("faults", seed=1, rates={}, targeted=[])
    record.write("something_new", value=1)
    with record.path.open("a") as file:
        file.write('{"event": "rec')

    assert read_record(record.path) == {}


@pytest.mark.parametrize("line", ["nonsense\n", "[]\n", '{"no": "event"}\n'])
def test_an_unreadable_line_is_named(tmp_path: Path, line: str) -> None:
    """An oracle that guesses is none."""
    path = tmp_path / "mails.jsonl"
    path.write_text(line)

    with pytest.raises(ValueError, match="line 1"):
        read_record(path)
    with pytest.raises(ValueError, match="line 2"):
        read_told(["", line])


def test_committed_orders_are_read_by_plain_sql(empty_database_url: str) -> None:
    """What was rolled back is no order."""
    with psycopg.connect(empty_database_url) as connection:
        connection.execute("CREATE SCHEMA shop")
        connection.execute("CREATE TABLE shop.orders (id bigint PRIMARY KEY)")
        connection.execute("INSERT INTO shop.orders VALUES (8), (7)")
        connection.commit()
        connection.execute("INSERT INTO shop.orders VALUES (9)")
        assert read_orders(empty_database_url) == [7, 8]


@pytest.mark.parametrize(
    ("orders", "options", "code"),
    [("7", ["--drained"], 0), ("7\n8", ["--drained"], 1), ("7", [], 3)],
    ids=["all is well", "one is lost", "can't say"],
)
def test_by_itself_it_judges_files_without_the_project_in_reach(
    record: Record, tmp_path: Path, orders: str, options: list[str], code: int
) -> None:
    """A sceptic runs it with an interpreter that knows no path to the project."""
    record.request(accepted=True)
    (tmp_path / "orders").write_text(orders)
    (tmp_path / "told").write_text(json.dumps({"effect_key": KEY, "state": "delivered"}))
    files = ["--orders", "orders", "--record", record.path.name, "--told", "told"]

    done = subprocess.run(
        [sys.executable, "-I", oracle.__file__, *files, *options],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip

    assert (done.returncode, done.stderr) == (code, "")
    assert "1 e-mails accepted" in done.stdout


def test_it_imports_nothing_of_what_it_judges() -> None:
    """Only the standard library, and psycopg to read the orders."""
    imported = set()
    for node in ast.walk(ast.parse(Path(oracle.__file__).read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or "").partition(".")[0])

    assert imported - sys.stdlib_module_names == {"psycopg"}
