"""``outbox status``: counts by state, and whether anybody works on them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.outbox.commands.conftest import Command
    from tests.outbox.commands.scenes import Scene

STATES = ("ready", "scheduled", "backing_off", "running", "blocked", "held", "dead", "cancelled")


def everything(scene: Scene) -> None:
    """One job in each state, and two of some."""
    scene.held("k-held")
    scene.rejected("k-dead")
    scene.backing_off("k-backing-off", reached=True)
    scene.delivered("k-done")
    scene.dead("k-dead-2")
    scene.begun("k-running")
    scene.enqueue("k-scheduled", available_at=datetime.now(UTC) + timedelta(hours=1))
    scene.enqueue("k-blocked", ordering_key="o-1")
    cancelled = scene.enqueue("k-cancelled")
    scene.run("cancel_jobs", job_ids=[cancelled])
    scene.enqueue("k-ready")
    scene.enqueue("k-other", topic="sms.reminder")


def test_each_state_is_counted_as_the_view_shows_it(command: Command, scene: Scene) -> None:
    """The counts of the statement and the states of the view are the same."""
    everything(scene)
    answer = command("status", "--json")
    seen = dict(scene.sql("SELECT state, count(*) FROM outbox.job_status GROUP BY state"))
    assert answer.code == 0
    assert {state: answer.json[state] for state in STATES} == {s: seen[s] for s in STATES}
    assert (answer.json["ready"], answer.json["dead"], answer.json["held_effects"]) == (2, 2, 1)
    per_topic = answer.json["topics"].values()
    for state in STATES:
        assert sum(counts[state] for counts in per_topic) == answer.json[state]


def test_an_empty_database_has_no_oldest_jobs(command: Command) -> None:
    """Nothing waits: zeros, and null for the ages."""
    status = command("status", "--json").json
    assert {status[state] for state in STATES} == {0}
    assert status["unserved"] == 0
    assert status["oldest_ready_seconds"] is None
    assert status["oldest_held_seconds"] is None
    assert status["oldest_dead_seconds"] is None


def test_ages_are_counted_from_when_a_job_became_ready(command: Command, scene: Scene) -> None:
    """A job that was due ten minutes ago has been ready for as long, whenever it was enqueued."""
    job_id = scene.enqueue("k")
    scene.sql(
        "UPDATE outbox.job SET enqueued_at = now() - interval '1 day',"
        " available_at = now() - interval '10 min' WHERE id = %s", job_id,
    )  # fmt: skip
    assert 600 <= command("status", "--json").json["oldest_ready_seconds"] < 660


def test_ready_jobs_that_nobody_serves_are_unserved(command: Command, scene: Scene) -> None:
    """Without a consumer of their topic that was seen lately, ready jobs are unserved."""
    scene.enqueue("k-1", topic="email.a")
    scene.enqueue("k-2", topic="email.b")
    assert command("status", "--json").json["unserved"] == 2
    scene.note("email.a")
    status = command("status", "--json").json
    assert status["unserved"] == 1
    assert status["topics"]["email.b"]["unserved"] == 1
    assert [consumer["topics"] for consumer in status["consumers"]] == [["email.a"]]
    scene.note("email.a", seen_seconds=-1)
    assert command("status", "--json").json["unserved"] == 2


def test_a_claim_that_holds_shows_that_a_topic_is_served(command: Command, scene: Scene) -> None:
    """A consumer that is too busy to say that it is there serves its topic all the same."""
    scene.begun("k-1")
    scene.enqueue("k-2")
    assert command("status", "--json").json["unserved"] == 0


def test_a_status_that_takes_too_long_says_so(command: Command, scene: Scene) -> None:
    """No stale or partial numbers: one line and exit code 1."""
    with scene.lock("LOCK TABLE outbox.job IN ACCESS EXCLUSIVE MODE"):
        answer = command("status", "--json", "--timeout", "0.3")
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.count("\n") == 1
    assert "nothing was changed" in answer.err


def test_the_table_for_people_says_what_to_do(command: Command, scene: Scene) -> None:
    """Held, dead and unserved jobs come with the command that shows them."""
    everything(scene)
    answer = command("status")
    assert "outbox effects list --state held" in answer.out
    assert "outbox jobs --state dead" in answer.out
    assert "unserved: 1 ready jobs" in answer.out
    assert "all topics" in answer.out
