"""``outbox retry``: ended jobs come back once, under their old id and key, if they may."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from outbox.operator import connect
from outbox.retry import Permission, Retried, ended_jobs, retry
from tests.outbox.commands.scenes import TOPIC

if TYPE_CHECKING:
    from tests.outbox.commands.conftest import Command
    from tests.outbox.commands.scenes import Scene

PAST = datetime.now(UTC) - timedelta(hours=1)


def test_a_dead_job_comes_back_as_itself(command: Command, scene: Scene) -> None:
    """Same id, key and payload; attempts from zero; the claim version goes on."""
    claim = scene.dead("k-1")
    scene.sql("UPDATE outbox.ended_job SET claim_version = 7, attempts = 5")
    answer = command("retry", claim.id, "--json")
    assert (answer.code, answer.err) == (0, "")
    assert (answer.json["retried"], answer.json["skipped"]) == (1, 0)
    assert scene.state(claim.id)[0] == "ready"
    (again,) = scene.claim()
    assert (again.id, again.effect_key, again.claim_version) == (claim.id, "k-1", 8)
    assert scene.sql("SELECT attempts, payload ->> 'order' FROM outbox.job") == [(1, "102")]
    assert scene.sql("SELECT count(*) FROM outbox.ended_job") == [(0,)]


def test_a_cancelled_job_comes_back_by_its_id(command: Command, scene: Scene) -> None:
    """Cancelling is undone by name only, or by --state cancelled."""
    one, other = scene.enqueue("k-1"), scene.enqueue("k-2")
    assert command("cancel", one, other).code == 0
    assert command("retry", one).code == 0
    assert command("retry", "--all").out == "retried 0, skipped 0\n"
    assert command("retry", "--all", "--state", "cancelled").out == "retried 1, skipped 0\n"
    assert scene.state(other)[0] == "ready"


def test_a_refused_effect_is_rendered_and_frozen_anew(command: Command, scene: Scene) -> None:
    """The old request is gone, the fence goes on, and the next begin freezes a new one."""
    claim = scene.rejected("k-1")
    assert command("retry", claim.id).code == 0
    effect = scene.effect("k-1")
    assert (effect["state"], effect["open_since"], effect["settled_at"]) == ("open", None, None)
    assert (effect["request"], effect["request_hash"]) == (None, None)
    assert effect["requests_sent"] == 1
    (again,) = scene.claim()
    assert scene.reopen(again, requests_seen=1, request=b"mended") == b"mended"
    assert scene.effect("k-1")["requests_sent"] == 2


def test_a_try_that_never_arrived_keeps_its_frozen_request(command: Command, scene: Scene) -> None:
    """Dead at its cap with nothing open: the same bytes go out after the retry."""
    claim = scene.begun("k-1")
    scene.settle(claim, "retry", "open", reason="refused", delay_seconds=-1)
    scene.run("promote_due_jobs", limit=10)
    (again,) = scene.claim()
    scene.settle(again, "dead", reason="max_attempts")
    assert command("retry", claim.id).code == 0
    assert scene.effect("k-1")["request"] == b"request"


def test_what_was_given_up_and_may_have_been_sent_needs_a_word_more(
    command: Command, scene: Scene
) -> None:
    """No bulk retry makes a second e-mail out of it; --send-again does."""
    claim = scene.held("k-1")
    command("effects", "resolve", "k-1", "--give-up")
    refused = command("retry", claim.id)
    assert (refused.code, refused.out) == (1, "retried 0, skipped 1\n")
    assert "may have been sent; --send-again" in refused.err
    assert command("retry", "--all", "--json").json["reasons"] == {"may_have_been_sent": 1}
    assert command("retry", claim.id, "--send-again").code == 0
    assert scene.effect("k-1")["open_since"] is None
    assert scene.state(claim.id)[0] == "ready"


def test_what_can_not_come_back_says_why(command: Command, scene: Scene) -> None:
    """Each job that is skipped has its reason, and retried and skipped add up."""
    expired = scene.dead("k-expired").id
    scene.sql("UPDATE outbox.ended_job SET expires_at = %s", PAST)
    pruned = scene.dead("k-pruned").id
    scene.sql("UPDATE outbox.ended_job SET payload = NULL WHERE id = %s", pruned)
    duplicate = scene.enqueue("k-duplicate")
    (claim,) = scene.claim()
    scene.settle(claim, "duplicate", reason="delivered")
    beside_held = scene.dead("k-held").id
    scene.held("k-held")
    beside_delivered = scene.dead("k-delivered").id
    delivered = scene.delivered("k-delivered").id
    live = scene.enqueue("k-live")
    fine = scene.dead("k-fine", topic="email.b").id
    ids = (expired, pruned, duplicate, beside_held, beside_delivered, delivered, live, 4711, fine)
    answer = command("retry", *ids, "--json")
    assert answer.code == 1
    assert (answer.json["retried"], answer.json["skipped"]) == (1, 8)
    assert {job["job_id"]: job["refusal"] for job in answer.json["jobs"]} == {
        expired: "expired",
        pruned: "payload_pruned",
        duplicate: "duplicate",
        beside_held: "held",
        beside_delivered: "delivered",
        delivered: "done",
        live: "ready",
        4711: "unknown",
        fine: None,
    }
    assert "payload is gone" in answer.err
    assert len(answer.err.splitlines()) == 8


def test_an_expired_job_comes_back_only_when_its_expiry_is_dropped(
    command: Command, scene: Scene
) -> None:
    """A reset link three days late is worse than none, unless a person says otherwise."""
    claim = scene.dead("k-1")
    scene.sql("UPDATE outbox.ended_job SET expires_at = %s", PAST)
    assert command("retry", claim.id).code == 1
    assert command("retry", claim.id, "--ignore-expiry").code == 0
    assert scene.sql("SELECT expires_at FROM outbox.job") == [(None,)]


def test_an_expiry_that_is_ahead_stays(command: Command, scene: Scene) -> None:
    """The job is still called off when its time has passed."""
    ahead = datetime.now(UTC) + timedelta(days=1)
    claim = scene.dead("k-1", expires_at=ahead)
    assert command("retry", claim.id).code == 0
    assert scene.sql("SELECT expires_at FROM outbox.job") == [(ahead,)]


def test_a_key_that_stands_for_another_effect_is_remarked(command: Command, scene: Scene) -> None:
    """It comes back, but will end the same way; the other's refused effect is not reopened."""
    scene.rejected("k-1")
    conflict = scene.dead("k-1", "effect_key_conflict", payload={"to": "else@example.com"})
    answer = command("retry", conflict.id)
    assert answer.code == 0
    assert "effect_key_conflict again" in answer.err
    assert scene.effect("k-1")["state"] == "rejected"


def test_bulk_is_chosen_by_topic_reason_and_time(command: Command, scene: Scene) -> None:
    """Each filter leaves out what it should, and a dry run changes nothing."""
    old = scene.dead("k-1", "max_attempts").id
    scene.sql("UPDATE outbox.ended_job SET ended_at = now() - interval '3 days'")
    other = scene.dead("k-2", "unrenderable").id
    third = scene.dead("k-3", "unrenderable", topic="email.b").id
    dry = command("retry", "--all", "--dry-run", "--json").json
    assert [(job["job_id"], job["refusal"]) for job in dry["jobs"]] == [
        (old, None), (other, None), (third, None),
    ]  # fmt: skip
    assert scene.sql("SELECT count(*) FROM outbox.job") == [(0,)]
    for arguments, expected in (
        (("--before", "1d"), [old]),
        (("--topic", "email.b"), [third]),
        (("--reason", "unrenderable", "--topic", TOPIC), [other]),
    ):
        jobs = command("retry", *arguments, "--json").json["jobs"]
        assert [job["job_id"] for job in jobs] == expected


@pytest.mark.parametrize("arguments", [(), ("1", "--all"), ("1", "--topic", "email.a"), ("0",)])
def test_arguments_that_make_no_sense_are_wrong_use(
    command: Command, arguments: tuple[str, ...]
) -> None:
    """Exit code 2, with what is missing or too much."""
    answer = command("retry", *arguments)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err


def test_the_head_of_an_ordering_key_gets_in_line(command: Command, scene: Scene) -> None:
    """It waits for its turn, and two of one key are never ready at once."""
    scene.enqueue("k-1", ordering_key="o")
    scene.run("release_ordered_jobs", limit=10)
    (first,) = scene.claim()
    scene.settle(first, "dead", reason="unrenderable")
    second = scene.enqueue("k-2", ordering_key="o")
    scene.run("release_ordered_jobs", limit=10)
    assert command("retry", first.id).code == 0
    assert scene.state(first.id)[0] == "blocked"
    (claim,) = scene.claim()
    assert claim.id == second
    scene.settle(claim, "dead", reason="unrenderable")
    scene.run("release_ordered_jobs", limit=10)
    assert scene.state(first.id)[0] == "ready"


def test_two_replays_of_a_hundred_jobs_bring_each_back_once(scene: Scene) -> None:
    """Two people press the same button: what one brings back the other skips, and it adds up."""
    for number in range(100):
        scene.enqueue(f"k-{number}")
    for claim in scene.claim(limit=100):
        scene.settle(claim, "dead", reason="max_attempts")
    running = scene.begun("k-running")
    first = scene.sql("SELECT min(id) FROM outbox.ended_job")[0][0]

    def replay() -> list[Retried]:
        with connect(scene.url) as operator:
            ids = ended_jobs(
                operator, ended_as="dead", topic=None, reason=None, before=None, limit=1000
            )
            assert len(ids) == 100
            return retry(operator, ids, Permission())

    with ThreadPoolExecutor() as pool:
        with scene.lock("SELECT FROM outbox.ended_job WHERE id = %s FOR UPDATE", first):
            answers = [pool.submit(replay) for _ in range(2)]
            scene.wait_for_blocked(2)
        results = [answer.result() for answer in answers]
    assert [len(result) for result in results] == [100, 100]
    retried = [job.job_id for result in results for job in result if job.refusal is None]
    assert len(retried) == len(set(retried)) == 100
    assert {job.refusal for result in results for job in result} == {None, "ready"}
    assert scene.sql("SELECT count(*) FROM outbox.job") == [(101,)]
    assert scene.sql("SELECT count(*) FROM outbox.ended_job") == [(0,)]
    assert scene.state(running.id) == ("running", None)


def test_a_retry_waits_for_nobody_who_is_stuck(
    command: Command, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that another session holds are given up on with a line, and nothing is changed."""
    monkeypatch.setattr("outbox.operator.LOCK_SECONDS", 0.2)
    claim = scene.dead("k-1")
    with scene.lock("SELECT FROM outbox.ended_job FOR UPDATE"):
        answer = command("retry", claim.id)
    assert (answer.code, answer.out) == (1, "")
    assert "another session has held a lock" in answer.err
    assert scene.state(claim.id)[0] == "dead"
