"""``outbox effects list, show``: what the ledger says of a key."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from tests.outbox.commands.scenes import CONSUMER, TOPIC

if TYPE_CHECKING:
    import pytest

    from tests.outbox.commands.conftest import Command
    from tests.outbox.commands.scenes import Scene


def test_a_delivered_effect_says_who_when_how_often_and_which_id(
    command: Command, scene: Scene
) -> None:
    """The whole answer about one e-mail, in one object."""
    claim = scene.delivered("email-order-1", "re_123")
    answer = command("effects", "show", "email-order-1", "--json")
    shown = answer.json
    row = scene.effect("email-order-1")
    assert answer.code == 0
    assert shown == {
        "effect_key": "email-order-1",
        "state": "delivered",
        "topic": TOPIC,
        "provider": "resend",
        "account": "acct",
        "provider_message_id": "re_123",
        "requests_sent": 1,
        "first_attempt_at": _utc(row["first_attempt_at"]),
        "last_attempt_at": _utc(row["last_attempt_at"]),
        "settled_at": _utc(row["settled_at"]),
        "open_since": None,
        "may_have_been_sent": False,
        "job_id": claim.id,
        "attempted_by": CONSUMER,
        "detail": None,
        "wire_key": "live-email-order-1",
        "request_sha256": hashlib.sha256(b"request").hexdigest(),
        "jobs": shown["jobs"],
        "jobs_complete": True,
    }
    assert [(job["id"], job["state"]) for job in shown["jobs"]] == [(claim.id, "done")]


def test_a_held_effect_comes_with_the_commands_that_decide(command: Command, scene: Scene) -> None:
    """A person reads why it is held, and copies one of three commands."""
    scene.held("k-1")
    scene.enqueue("k-1")
    out = command("effects", "show", "k-1").out
    for text in ("nobody knows", "no_memory: reset", "--delivered", "--send-again", "--give-up"):
        assert text in out
    assert "outbox effects resolve k-1" in out
    shown = command("effects", "show", "k-1", "--json").json
    assert (shown["state"], shown["may_have_been_sent"]) == ("held", True)
    assert shown["open_since"] == shown["first_attempt_at"]
    assert [job["state"] for job in shown["jobs"]] == ["held", "ready"]


def test_a_refused_effect_names_the_retry(command: Command, scene: Scene) -> None:
    """It was not sent, and a person may have it rendered anew."""
    claim = scene.rejected("k-1")
    out = command("effects", "show", "k-1").out
    assert "not sent: the provider refused it for good" in out
    assert f"outbox retry {claim.id}" in out


def test_an_unknown_key_is_a_line_and_exit_code_1(command: Command) -> None:
    """Nothing on the standard output, one line beside it."""
    answer = command("effects", "show", "email-order-9", "--json")
    assert (answer.code, answer.out) == (1, "")
    assert answer.err == (
        "outbox: email-order-9: this key is unknown: neither the ledger nor a job has it\n"
    )


def test_a_key_whose_job_has_not_begun_is_told_from_an_unknown_one(
    command: Command, scene: Scene
) -> None:
    """No request was begun, but a job asks for the effect."""
    job_id = scene.enqueue("k-1")
    answer = command("effects", "show", "k-1")
    assert answer.code == 1
    assert f"no request was ever begun for this key; job {job_id} is ready" in answer.err


def test_a_name_that_is_no_key_is_wrong_use(command: Command) -> None:
    """Exit code 2, with what keys look like."""
    answer = command("effects", "show", "jane@example.com")
    assert answer.code == 2
    assert "not an effect key" in answer.err


def test_the_ledger_is_listed_by_key_page_by_page(command: Command, scene: Scene) -> None:
    """--limit and --after walk the keys."""
    for number in (3, 1, 2):
        scene.delivered(f"k-{number}")
    first = command("effects", "list", "--limit", 2, "--json").lines
    assert [line["effect_key"] for line in first] == ["k-1", "k-2"]
    rest = command("effects", "list", "--after", "k-2", "--json").lines
    assert [line["effect_key"] for line in rest] == ["k-3"]
    assert "--after k-2" in command("effects", "list", "--limit", 2).out


def test_json_lines_give_the_whole_ledger_unless_limited(
    command: Command, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script that asks for all gets all, however many pages that takes."""
    monkeypatch.setattr("outbox.commands.effects.JSON_PAGE", 2)
    monkeypatch.setattr("outbox.commands.jobs.JSON_PAGE", 2)
    for number in range(5):
        scene.delivered(f"k-{number}")
    assert len(command("effects", "list", "--json").lines) == 5
    assert len(command("jobs", "--state", "done", "--json").lines) == 5


def test_each_state_lists_its_own(command: Command, scene: Scene) -> None:
    """Whatever way the keys of a state are found, they are found and no others."""
    scene.delivered("k-delivered")
    scene.held("k-held")
    scene.rejected("k-rejected")
    scene.backing_off("k-open", reached=True)
    given_up = scene.held("k-given-up")
    assert command("effects", "resolve", "k-given-up", "--give-up").code == 0
    left_open = scene.backing_off("k-left-open", reached=False)
    assert command("cancel", left_open.id).code == 0
    listed = {
        state: [
            line["effect_key"]
            for line in command("effects", "list", "--state", state, "--json").lines
        ]
        for state in ("open", "delivered", "rejected", "held", "given_up")
    }
    assert listed == {
        "open": ["k-left-open", "k-open"],
        "delivered": ["k-delivered"],
        "rejected": ["k-rejected"],
        "held": ["k-held"],
        "given_up": ["k-given-up"],
    }
    assert scene.state(given_up.id) == ("dead", "given_up")


def test_a_list_can_be_of_one_topic(command: Command, scene: Scene) -> None:
    """--topic works with and without a state."""
    scene.held("k-1", topic="email.a")
    scene.held("k-2", topic="email.b")
    for state in ([], ["--state", "held"]):
        lines = command("effects", "list", "--topic", "email.b", *state, "--json").lines
        assert [line["effect_key"] for line in lines] == ["k-2"]


def test_times_are_utc_whatever_the_server_says(command: Command, scene: Scene) -> None:
    """A server that lives in another zone changes no answer."""
    name = scene.connection.info.dbname
    scene.sql(f"ALTER DATABASE \"{name}\" SET timezone = 'Asia/Tokyo'")
    scene.delivered("k-1")
    at = datetime.fromisoformat(command("effects", "show", "k-1", "--json").json["settled_at"])
    assert at.utcoffset() == timedelta(0)
    assert abs(datetime.now(UTC) - at) < timedelta(minutes=5)


def _utc(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="microseconds")
