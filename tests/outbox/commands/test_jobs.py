"""``outbox jobs``: pages of jobs, and single ones."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from tests.outbox.commands.scenes import CONSUMER, TOPIC
from tests.outbox.commands.test_status import everything

if TYPE_CHECKING:
    from tests.outbox.commands.conftest import Command
    from tests.outbox.commands.scenes import Scene


def test_all_but_done_jobs_are_listed_with_their_reasons(command: Command, scene: Scene) -> None:
    """What waits and what went wrong is a line each, in order of ids; done ones are left out."""
    held = scene.held("k-held")
    scene.delivered("k-done")
    dead = scene.rejected("k-dead")
    ready = scene.enqueue("k-ready")
    lines = command("jobs", "--json").lines
    assert [(line["id"], line["state"], line["reason"]) for line in lines] == [
        (held.id, "held", "no_memory"),
        (dead.id, "dead", "rejected"),
        (ready, "ready", None),
    ]
    assert lines[1]["detail"] == "http_422: no such field"


def test_done_jobs_are_listed_when_asked_for(command: Command, scene: Scene) -> None:
    """A delivered job is listed from the ledger, whose row is its record."""
    done = scene.delivered("k-done")
    ready = scene.enqueue("k-ready")
    assert [line["id"] for line in command("jobs", "--state", "done", "--json").lines] == [done.id]
    everything = command("jobs", "--state", "all", "--json").lines
    assert [line["id"] for line in everything] == [done.id, ready]


def test_each_job_is_listed_as_the_view_shows_it(command: Command, scene: Scene) -> None:
    """The statement walks the tables on its own, and says the same of every job."""
    everything(scene)
    scene.dead("k-dead-3", "max_attempts")
    names = "id, state, topic, effect_key, attempts, claimed_by, reason, detail"
    seen = scene.sql(f"SELECT {names} FROM outbox.job_status ORDER BY id")
    listed = command("jobs", "--state", "all", "--json").lines
    assert [tuple(line[name] for name in names.split(", ")) for line in listed] == seen


def test_an_acceptance_that_came_late_is_listed_once(command: Command, scene: Scene) -> None:
    """Its job waits in the queue for its next claim, which will find it delivered."""
    claim = scene.held("k-1")
    scene.settle(claim, "done", "delivered", message_id="late")
    scene.sql("UPDATE outbox.job SET claim_version = 9")
    listed = command("jobs", "--state", "all", "--json").lines
    assert [(line["id"], line["state"]) for line in listed] == [(claim.id, "held")]
    assert scene.sql("SELECT count(*) FROM outbox.job_status") == [(1,)]


def test_a_list_is_read_page_by_page(command: Command, scene: Scene) -> None:
    """--limit and --after walk the ids, of one topic where one is named."""
    ids = [scene.enqueue(f"k-{n}") for n in range(5)]
    scene.enqueue("k-other", topic="sms.reminder")
    page = command("jobs", "--topic", TOPIC, "--limit", 2, "--json").lines
    assert [line["id"] for line in page] == ids[:2]
    rest = command("jobs", "--topic", TOPIC, "--after", ids[1], "--json").lines
    assert [line["id"] for line in rest] == ids[2:]
    assert f"--after {ids[1]}" in command("jobs", "--limit", 2).out


def test_every_state_has_its_list(command: Command, scene: Scene) -> None:
    """No state that the view knows is out of reach of the command."""
    everything(scene)
    states = scene.sql("SELECT state, array_agg(id ORDER BY id) FROM outbox.job_status GROUP BY 1")
    assert len(states) == 9
    for state, ids in states:
        lines = command("jobs", "--state", state, "--json").lines
        assert ([line["id"] for line in lines], {line["state"] for line in lines}) == (ids, {state})


def test_an_unknown_state_is_wrong_use(command: Command) -> None:
    """Exit code 2, and the states that there are."""
    answer = command("jobs", "--state", "asleep")
    assert answer.code == 2
    assert "backing_off" in answer.err


def test_no_jobs_are_said_to_be_none(command: Command) -> None:
    """An empty list is a sentence for people and nothing for programs."""
    assert command("jobs").out == "no such jobs\n"
    assert command("jobs", "--json").out == ""


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]0;x\x07\x1b[2J", r"\x1b]0;x\x07\x1b[2J"),
        ("a\u202egnp.exe", r"a\u202egnp.exe"),
        ("two\nlines\r", r"two\nlines\r"),
        ("\x7f\x9b31m", r"\x7f\x9b31m"),
        ("[red]<img src=x onerror=alert(1)>[/red]", "[red]<img src=x onerror=alert(1)>[/red]"),
    ],
)
def test_control_characters_are_shown_and_not_obeyed(
    command: Command, scene: Scene, text: str, shown: str
) -> None:
    """Whatever a provider or a user wrote, a terminal only shows it."""
    job_id = scene.enqueue("k", ordering_key=text)
    scene.sql("UPDATE outbox.job SET last_error = %s, claimed_by = NULL", text)
    listed, single = command("jobs").out, command("jobs", "show", job_id).out
    assert shown in listed
    assert single.count(shown) == 2
    for out in (listed, single, command("jobs", "--json").out):
        assert all(character == "\n" or character.isprintable() for character in out)
    assert command("jobs", "--json").lines[0]["reason"] == text


def test_addresses_are_masked_and_payloads_kept_to_themselves(
    command: Command, scene: Scene
) -> None:
    """No e-mail address is printed unless somebody asks for the payload."""
    job_id = scene.enqueue("k", ordering_key="jane@example.com")
    scene.sql("UPDATE outbox.job SET last_error = 'refused: <jane@example.com>'")
    asked = [
        command("jobs"), command("jobs", "--json"), command("jobs", "show", job_id),
        command("jobs", "show", job_id, "--json"),
    ]  # fmt: skip
    assert not [answer for answer in asked if "example.com" in answer.out]
    assert "***@***" in asked[0].out
    shown = command("jobs", "show", job_id, "--payload", "--json").json
    assert shown["payload"] == {"to": "jane@example.com", "order": 102}
    for_people = command("jobs", "show", job_id, "--payload").out.splitlines()[-1]
    assert json.loads(for_people) == shown["payload"]


def test_a_live_job_is_shown_with_its_claim_and_the_ledger(command: Command, scene: Scene) -> None:
    """Who works on it until when, and whether a request may have left."""
    claim = scene.begun("k-1", expires_at=datetime(2099, 1, 1, tzinfo=UTC))
    shown = command("jobs", "show", claim.id, "--json").json
    assert (shown["state"], shown["claimed_by"], shown["attempts"]) == ("running", CONSUMER, 1)
    assert shown["expires_at"] == "2099-01-01T00:00:00.000000+00:00"
    assert shown["effect"]["may_have_been_sent"] is True
    assert "may have been sent" in command("jobs", "show", claim.id).out


def test_a_delivered_job_is_found_in_the_ledger(command: Command, scene: Scene) -> None:
    """It has no row of its own any more, and is shown all the same."""
    claim = scene.delivered("k-1")
    shown = command("jobs", "show", claim.id, "--payload", "--json").json
    assert (shown["state"], shown["effect_key"], shown["payload"]) == ("done", "k-1", None)
    assert "sent: the provider accepted it" in command("jobs", "show", claim.id).out


def test_a_job_without_a_request_says_so(command: Command, scene: Scene) -> None:
    """The ledger is asked, and knows nothing of the key."""
    job_id = scene.enqueue("k", available_at=datetime.now(UTC) + timedelta(hours=1))
    assert "no request was ever begun" in command("jobs", "show", job_id).out
    assert command("jobs", "show", job_id, "--json").json["effect"] is None


def test_an_unknown_job_is_a_line_and_exit_code_1(command: Command) -> None:
    """Nobody knows the id."""
    answer = command("jobs", "show", 4711)
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith("outbox: job 4711: no such job")
