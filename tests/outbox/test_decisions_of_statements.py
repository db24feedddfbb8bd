"""What statements that decide write, column by column: settling, and what people decide."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.outbox.commands.scenes import CONSUMER, Claim, Scene

if TYPE_CHECKING:
    from collections.abc import Iterator


Row = dict[str, Any]


@pytest.fixture
def scene(url: str) -> Iterator[Scene]:
    """A transaction that is undone."""
    with psycopg.connect(url) as connection, connection.transaction(force_rollback=True):
        yield Scene(url, connection)


def settle(scene: Scene, *outcomes: Row, claimed_by: str = CONSUMER) -> list[tuple[bool, bool]]:
    """Settle in one batch; of each, in their order, whether its claim held
    and its effect was written.
    """
    rows = scene.run("settle_attempts", outcomes=json.dumps(outcomes), claimed_by=claimed_by)
    return [(row["claim_held"], row["effect_written"]) for row in rows]


def outcome(claim: Claim, job_action: str, effect_state: str | None = None, **more: object) -> Row:
    """One attempt's end."""
    return {
        "job_id": claim.id, "claim_version": claim.claim_version, "effect_key": claim.effect_key,
        "requests_seen": 1, "effect_state": effect_state, "nothing_open": False,
        "message_id": None, "job_action": job_action, "refund": False, "delay_seconds": 60,
        "reason": "why", "detail": None,
    } | more  # fmt: skip


def job(scene: Scene, id_: int) -> Row | None:
    """A live job."""
    with scene.connection.cursor(row_factory=psycopg.rows.dict_row) as cursor:
        return cursor.execute("SELECT * FROM outbox.job WHERE id = %s", (id_,)).fetchone()


def live(scene: Scene, id_: int) -> Row:
    """A job that must be live."""
    found = job(scene, id_)
    assert found is not None
    return found


def ends(scene: Scene) -> list[tuple[str, str, str]]:
    """Keys, ends and reasons of the jobs that ended, by id."""
    return [
        (row[0], row[1], row[2])
        for row in scene.sql(
            "SELECT effect_key, ended_as, reason FROM outbox.ended_job ORDER BY id"
        )
    ]


def second(scene: Scene, key: str = "k") -> Claim:
    """Another job of a key, claimed."""
    scene.enqueue(key)
    (claim,) = scene.claim()
    return claim


# -- settling: the job ---------------------------------------------------------------------------


def test_a_retry_waits_and_keeps_its_place_among_the_open(scene: Scene) -> None:
    """Its try may have been accepted; an attempt is spent."""
    claim = scene.begun("k")
    bystander = scene.begun("l")
    assert settle(scene, outcome(claim, "retry", "open")) == [(True, True)]
    row = live(scene, claim.id)
    assert (row["waiting"], row["position"], row["attempts"]) == ("backoff", None, 1)
    assert (row["claimed_by"], row["claimed_at"], row["lease_until"]) == (None, None, None)
    assert row["retry_first"]
    assert row["last_error"] == "why"
    assert scene.sql(
        "SELECT available_at BETWEEN now() + interval '50 seconds' AND now() + interval '2 minutes'"
        " FROM outbox.job WHERE id = %s", claim.id,
    ) == [(True,)]  # fmt: skip
    assert live(scene, bystander.id)["claimed_by"] == CONSUMER


def test_each_job_of_a_batch_goes_its_own_way(scene: Scene) -> None:
    """Those that stay live, each with its own reason, place and attempts."""
    retried, held, back = scene.begun("k"), scene.begun("l"), scene.begun("m")
    settle(
        scene,
        outcome(retried, "retry", "open", reason="retried"),
        outcome(held, "hold", "held", reason="held"),
        outcome(back, "give_back", refund=True, reason="back"),
    )
    assert [
        (row["waiting"], row["attempts"], row["last_error"])
        for row in (live(scene, claim.id) for claim in (retried, held, back))
    ] == [("backoff", 1, "retried"), ("resolve", 1, "held"), (None, 0, "back")]


def test_what_surely_was_not_sent_goes_before_nobody(scene: Scene) -> None:
    """And an outage spends nothing."""
    claim = scene.begun("k")
    settle(scene, outcome(claim, "retry", "open", nothing_open=True, refund=True))
    row = live(scene, claim.id)
    assert (row["retry_first"], row["attempts"]) == (False, 0)
    assert scene.effect("k")["open_since"] is None


def test_what_is_given_back_keeps_its_place_its_time_and_its_error(scene: Scene) -> None:
    """As if it had not been claimed: also that it goes first, and why it failed before."""
    claim = scene.begun("k")
    settle(scene, outcome(claim, "retry", "open", delay_seconds=-1))
    scene.run("promote_due_jobs", limit=9)
    before = scene.sql("SELECT position, available_at, retry_first, last_error FROM outbox.job")
    (claim,) = scene.claim()
    settle(scene, outcome(claim, "give_back", refund=True, reason=None))
    row = live(scene, claim.id)
    assert (
        scene.sql("SELECT position, available_at, retry_first, last_error FROM outbox.job")
        == before
    )
    assert (row["waiting"], row["attempts"], row["retry_first"]) == (None, 1, True)
    assert row["last_error"] == "why"


def test_a_held_job_waits_for_a_person(scene: Scene) -> None:
    """Its effect keeps the request and the age; nothing goes first."""
    claim = scene.begun("k")
    settle(scene, outcome(claim, "hold", "held", detail="no_memory: why"))
    row = live(scene, claim.id)
    assert (row["waiting"], row["position"], row["retry_first"]) == ("resolve", None, False)
    effect = scene.effect("k")
    assert (effect["state"], effect["settled_at"], effect["request"]) == ("held", None, b"request")
    assert effect["open_since"] is not None
    assert effect["detail"] == "no_memory: why"


@pytest.mark.parametrize(
    ("action", "state", "ended"),
    [
        ("done", "delivered", []),
        ("duplicate", None, [("k", "duplicate", "why")]),
        ("dead", "rejected", [("k", "dead", "why")]),
        ("dead", None, [("k", "dead", "why")]),
        ("cancelled", None, [("k", "cancelled", "why")]),
    ],
)
def test_an_end_removes_its_own_job_once(
    scene: Scene, action: str, state: str | None, ended: list[tuple[str, str, str]]
) -> None:
    """A delivered one leaves its row in the ledger alone; what is not said of the ledger stays."""
    claim = scene.begun("k")
    bystander = scene.begun("l")
    before = scene.effect("k")
    assert settle(scene, outcome(claim, action, state, nothing_open=True)) == [
        (True, state is not None)
    ]
    assert job(scene, claim.id) is None
    assert ends(scene) == ended
    assert live(scene, bystander.id)["claimed_by"] == CONSUMER
    assert scene.effect("l")["state"] == "open"
    if state is None:
        assert scene.effect("k") == before
    else:
        after = scene.effect("k")
        assert (after["state"], after["request"], after["detail"]) == (state, None, "why")
        assert after["settled_at"] is not None
        assert after["open_since"] is None


# -- settling: the ledger ------------------------------------------------------------------------


def test_an_outcome_whose_effect_has_moved_on_asks_again_unspent(scene: Scene) -> None:
    """At the end of the line, whatever it wished for; its ledger row stays as it is."""
    claim = scene.begun("k")
    scene.enqueue("behind")
    scene.sql("UPDATE outbox.effect SET requests_sent = 2")
    before = scene.effect("k")
    assert settle(scene, outcome(claim, "dead", "rejected")) == [(True, False)]
    row = live(scene, claim.id)
    assert (row["waiting"], row["attempts"]) == (None, 0)
    assert scene.effect("k") == before
    assert [c.effect_key for c in scene.claim(limit=1)] == ["behind"]


@pytest.mark.parametrize("seen", [0, 2])
def test_an_outcome_of_another_try_is_not_this_ones(scene: Scene, seen: int) -> None:
    """Neither an older one's nor one that has not been."""
    claim = scene.begun("k")
    given = outcome(claim, "dead", "rejected", requests_seen=seen)
    assert settle(scene, given) == [(True, False)]


@pytest.mark.parametrize("state", ["held", "rejected", "given_up"])
def test_no_outcome_writes_over_what_was_decided(scene: Scene, state: str) -> None:
    """A person or another consumer was faster."""
    claim = scene.begun("k")
    scene.sql(
        "UPDATE outbox.effect SET state = %s,"
        " settled_at = CASE WHEN %s <> 'held' THEN now() END,"
        " request = CASE WHEN %s = 'held' THEN request END", state, state, state,
    )  # fmt: skip
    before = scene.effect("k")
    assert settle(scene, outcome(claim, "retry", "open")) == [(True, False)]
    assert scene.effect("k") == before


def test_nothing_is_held_that_is_not_open(scene: Scene) -> None:
    """The open try was proven unsent since it was read: the next begin reads what to do."""
    claim = scene.begun("k")
    scene.sql("UPDATE outbox.effect SET open_since = NULL")
    assert settle(scene, outcome(claim, "hold", "held")) == [(True, False)]
    assert live(scene, claim.id)["waiting"] is None


@pytest.mark.parametrize(
    ("state", "written"), [("open", True), ("held", True), ("rejected", False), ("given_up", False)]
)
def test_an_acceptance_in_hand_goes_by_the_ledger_alone(
    scene: Scene, state: str, *, written: bool
) -> None:
    """Whoever holds the claim by now, whatever has been tried since; a settled effect stays."""
    claim = scene.begun("k")
    scene.sql(
        "UPDATE outbox.effect SET state = %s, requests_sent = 2, provider_message_id = 'known',"
        " settled_at = CASE WHEN %s NOT IN ('open', 'held') THEN now() END,"
        " request = CASE WHEN %s IN ('open', 'held') THEN request END", state, state, state,
    )  # fmt: skip
    stale = Claim(claim.id, claim.claim_version - 1, "k")
    given = outcome(stale, "done", "delivered", nothing_open=True)
    assert settle(scene, given, claimed_by="late") == [(False, written)]
    effect = scene.effect("k")
    assert effect["state"] == ("delivered" if written else state)
    assert effect["provider_message_id"] == "known"
    assert live(scene, claim.id)["claimed_by"] == CONSUMER
    by = ("late", claim.claim_version - 1) if written else (CONSUMER, claim.claim_version)
    assert (effect["attempted_by"], effect["claim_version"]) == by


@pytest.mark.parametrize("state", ["open", "held", "rejected"])
def test_nothing_else_in_hand_counts_without_its_claim(scene: Scene, state: str) -> None:
    """No other outcome goes by the ledger alone."""
    claim = scene.begun("k")
    before = scene.effect("k")
    for stale in (
        outcome(Claim(claim.id, claim.claim_version - 1, "k"), "retry", state),
        outcome(Claim(claim.id, claim.claim_version + 1, "k"), "retry", state),
    ):
        assert settle(scene, stale) == [(False, False)]
    assert settle(scene, outcome(claim, "retry", state), claimed_by="other") == [(False, False)]
    assert scene.effect("k") == before
    assert live(scene, claim.id)["claimed_by"] == CONSUMER


def test_of_two_jobs_of_a_key_the_acceptance_is_written(scene: Scene) -> None:
    """In one batch: whatever else is said of the key, by a lower job too."""
    first = scene.begun("k")
    other = second(scene)
    assert settle(
        scene,
        outcome(first, "dead", "rejected"),
        outcome(other, "done", "delivered", nothing_open=True, message_id="m"),
    ) == [(True, False), (True, True)]
    effect = scene.effect("k")
    assert (effect["state"], effect["job_id"]) == ("delivered", other.id)
    assert (effect["attempted_by"], effect["claim_version"]) == (CONSUMER, other.claim_version)
    assert effect["provider_message_id"] == "m"
    assert live(scene, first.id)["attempts"] == 0


@pytest.mark.parametrize("join", ["nestloop", "hashjoin", "mergejoin"])
@pytest.mark.parametrize("state", ["delivered", "rejected"])
def test_of_two_jobs_that_say_the_same_the_lower_one_is_written(
    scene: Scene, state: str, join: str
) -> None:
    """In whatever order they are given, and whichever of them the planner joins first."""
    for other_join in {"nestloop", "hashjoin", "mergejoin"} - {join}:
        scene.sql(f"SET LOCAL enable_{other_join} = off")
    first = scene.begun("k")
    other = second(scene)
    action = "done" if state == "delivered" else "dead"
    assert settle(
        scene,
        outcome(other, action, state, nothing_open=True, detail="other"),
        outcome(first, action, state, nothing_open=True, detail="first"),
    ) == [(True, False), (True, True)]
    assert scene.effect("k")["detail"] == "first"
    assert scene.effect("k")["job_id"] == first.id


def test_who_settles_without_an_acceptance_is_not_the_record(scene: Scene) -> None:
    """The try that was begun stays the one that was begun."""
    scene.begun("k")
    other = second(scene)
    scene.sql("UPDATE outbox.effect SET attempted_by = 'earlier', claim_version = 7")
    before = scene.effect("k")
    settle(scene, outcome(other, "dead", "rejected", nothing_open=True))
    after = scene.effect("k")
    assert after["state"] == "rejected"
    for column in ("job_id", "claim_version", "attempted_by"):
        assert after[column] == before[column], column
    assert after["job_id"] != other.id


# -- reopening -----------------------------------------------------------------------------------


def reopen(scene: Scene, claim: Claim, **changed: object) -> Row | None:
    """Begin a further try; what has to be sent, if it may."""
    rows = scene.run("reopen_effects", **({
        "job_ids": [claim.id], "claim_versions": [claim.claim_version], "requests_seen": [1],
        "requests": [b"new"], "request_hashes": [b"new hash"], "wire_keys": ["new"],
        "claimed_by": CONSUMER, "provider": "resend", "account": "acct",
    } | changed))  # fmt: skip
    return rows[0] if rows else None


def again(scene: Scene, *, nothing_open: bool) -> Claim:
    """A job whose first try is over, claimed anew."""
    claim = scene.begun("k")
    settle(scene, outcome(claim, "give_back", "open", nothing_open=nothing_open))
    (claim,) = scene.claim()
    return claim


@pytest.mark.parametrize("elsewhere", [False, True])
def test_an_open_try_is_repeated_as_it_was_frozen(scene: Scene, *, elsewhere: bool) -> None:
    """Same key, bytes, hash, place and age, whoever is configured by now; counted once more."""
    claim = again(scene, nothing_open=False)
    before = scene.effect("k")
    place = {"provider": "other", "account": "theirs"} if elsewhere else {}
    row = reopen(scene, claim, **place)
    assert row is not None
    assert (row["begun"], row["request"], row["wire_key"]) == (True, b"request", "live-k")
    after = scene.effect("k")
    assert after["requests_sent"] == row["requests_sent"] == 2
    assert after["last_attempt_at"] > before["last_attempt_at"]
    assert after["claim_version"] == claim.claim_version
    changed = {"requests_sent", "last_attempt_at", "claim_version"}
    assert {key for key in after if after[key] != before[key]} == changed


@pytest.mark.parametrize("there", [True, False])
def test_a_try_that_surely_was_not_sent_is_frozen_anew_only_elsewhere(
    scene: Scene, *, there: bool
) -> None:
    """Its age starts again, and its account is the one that is configured."""
    claim = again(scene, nothing_open=True)
    scene.sql("UPDATE outbox.effect SET first_attempt_at = first_attempt_at - interval '1 hour'")
    place = {} if there else {"provider": "other"}
    row = reopen(scene, claim, account="theirs", **place)
    assert row is not None
    after = scene.effect("k")
    assert after["open_since"] == after["last_attempt_at"] > after["first_attempt_at"]
    assert after["account"] == "theirs"
    assert after["provider"] == ("resend" if there else "other")
    frozen = (after["request"], bytes(after["request_hash"]) == b"new hash", after["wire_key"])
    assert frozen == ((b"request", False, "live-k") if there else (b"new", True, "new"))


def test_where_no_request_is_left_the_new_one_is_frozen(scene: Scene) -> None:
    """After a person's retry of a refusal."""
    claim = again(scene, nothing_open=True)
    scene.sql("UPDATE outbox.effect SET request = NULL, request_hash = NULL")
    row = reopen(scene, claim)
    assert row is not None
    assert row["request"] == b"new"
    assert (row["wire_key"], scene.effect("k")["request_hash"]) == ("new", b"new hash")


def test_a_further_try_changes_its_own_effect_alone(scene: Scene) -> None:
    """By the job that holds the claim, whichever began before."""
    scene.begun("l")
    first = again(scene, nothing_open=True)
    scene.sql("UPDATE outbox.job SET lease_until = now() WHERE id = %s", first.id)
    other = second(scene)
    row = reopen(scene, other)
    assert row is not None
    assert row["begun"]
    assert scene.effect("k")["job_id"] == other.id
    assert scene.effect("l")["requests_sent"] == 1


@pytest.mark.parametrize("seen", [0, 2])
def test_who_read_another_try_begins_none(scene: Scene, seen: int) -> None:
    """Its claim holds, and it is told that it has not begun."""
    claim = again(scene, nothing_open=True)
    row = reopen(scene, claim, requests_seen=[seen])
    assert row is not None
    assert row["begun"] is False
    assert scene.effect("k")["requests_sent"] == 1


@pytest.mark.parametrize("state", ["held", "delivered", "rejected", "given_up"])
def test_what_is_decided_is_not_begun_again(scene: Scene, state: str) -> None:
    """Whatever the claim."""
    claim = again(scene, nothing_open=False)
    scene.sql(
        "UPDATE outbox.effect SET state = %s,"
        " settled_at = CASE WHEN %s <> 'held' THEN now() END,"
        " request = CASE WHEN %s = 'held' THEN request END", state, state, state,
    )  # fmt: skip
    row = reopen(scene, claim)
    assert row is not None
    assert row["begun"] is False


def test_a_claim_that_does_not_hold_begins_no_further_try(scene: Scene) -> None:
    """Another version, before or after; another's name; a lease that is over."""
    claim = again(scene, nothing_open=True)
    for version in (claim.claim_version - 1, claim.claim_version + 1):
        assert reopen(scene, Claim(claim.id, version, "k")) is None
    assert reopen(scene, claim, claimed_by="other") is None
    scene.sql("UPDATE outbox.job SET lease_until = now()")
    assert reopen(scene, claim) is None
    assert scene.effect("k")["requests_sent"] == 1


# -- people --------------------------------------------------------------------------------------


def cancel(scene: Scene, *ids: int) -> list[str | None]:
    """Cancel jobs; why it is too late, of each."""
    return [row["too_late"] for row in scene.run("cancel_jobs", job_ids=list(ids))]


def test_a_cancel_asks_for_the_effect_of_this_very_job(scene: Scene) -> None:
    """Not for one of another topic, of another payload or of another key."""
    held = scene.held("k")
    assert cancel(scene, held.id) == ["held"]
    topic = scene.enqueue("k", topic="other")
    payload = scene.enqueue("k", payload={"another": 1})
    other = scene.enqueue("l")
    same = scene.enqueue("k")
    bystander = scene.enqueue("m")
    assert cancel(scene, topic, payload, other, same) == [None, None, None, "held"]
    assert [row[0] for row in ends(scene)] == ["k", "k", "l"]
    assert {row[1:] for row in ends(scene)} == {("cancelled", "by_person")}
    assert job(scene, bystander) is not None
    assert job(scene, same) is not None


def test_a_cancel_is_too_late_for_what_is_under_way_or_was_sent(scene: Scene) -> None:
    """Running, perhaps sent, delivered; a try that surely was not sent is no obstacle."""
    running = scene.begun("k")
    assert cancel(scene, running.id) == ["running"]
    scene.sql("UPDATE outbox.job SET lease_until = now()")
    assert cancel(scene, running.id) == ["may_have_been_sent"]
    scene.sql("UPDATE outbox.effect SET open_since = NULL")
    assert cancel(scene, running.id) == [None]
    scene.delivered("l")
    assert cancel(scene, scene.enqueue("l")) == ["delivered"]


def retry(scene: Scene, *ids: int, **permission: bool) -> list[tuple[str | None, bool]]:
    """Bring jobs back; of each why not, and whether its key stands for another effect."""
    asked = {"send_again": False, "ignore_expiry": False, "dry_run": False} | permission
    rows = scene.run("retry_jobs", job_ids=list(ids), **asked)
    return [(row["refusal"], row["conflicts"]) for row in rows]


@pytest.mark.parametrize("state", ["rejected", "given_up"])
def test_a_retry_reopens_what_was_refused_or_given_up(scene: Scene, state: str) -> None:
    """To be frozen anew, and that effect alone; the job goes on under its version."""
    dead, bystander = scene.rejected("k"), scene.rejected("l")
    scene.sql("UPDATE outbox.effect SET state = %s", state)
    assert retry(scene, dead.id, dry_run=True) == [(None, False)]
    assert scene.effect("k")["state"] == state
    assert job(scene, dead.id) is None
    assert retry(scene, dead.id) == [(None, False)]
    effect = scene.effect("k")
    assert (effect["state"], effect["request"], effect["open_since"]) == ("open", None, None)
    assert (effect["request_hash"], effect["settled_at"]) == (None, None)
    assert "http_422" in effect["detail"]
    row = live(scene, dead.id)
    assert (row["claim_version"], row["attempts"], row["waiting"]) == (dead.claim_version, 0, None)
    assert row["last_error"] == "retried by a person after rejected"
    assert scene.effect("l")["state"] == state
    assert ends(scene) == [("l", "dead", "rejected")]
    assert job(scene, bystander.id) is None


def test_a_reopened_effect_without_a_detail_keeps_its_past(scene: Scene) -> None:
    """What it was before is said at least."""
    dead = scene.rejected("k")
    scene.sql("UPDATE outbox.effect SET detail = NULL")
    retry(scene, dead.id)
    assert scene.effect("k")["detail"] == "retried by a person; before: rejected"


def test_a_retry_leaves_what_is_open_as_it_is(scene: Scene) -> None:
    """The frozen request and its age stay, and no permission is asked for."""
    claim = scene.begun("k")
    scene.settle(claim, "dead", reason="max_attempts")
    before = scene.effect("k")
    assert retry(scene, claim.id) == [(None, False)]
    assert scene.effect("k") == before


def test_a_retry_is_refused_where_it_could_do_harm_or_nothing(scene: Scene) -> None:
    """A second try of what was delivered or is held; nothing to send; past its end."""
    scene.delivered("delivered")
    duplicate = second(scene, "delivered")
    scene.settle(duplicate, "duplicate", reason="delivered")
    assert retry(scene, duplicate.id) == [("duplicate", False)]
    scene.sql("UPDATE outbox.ended_job SET ended_as = 'dead'")
    assert retry(scene, duplicate.id) == [("delivered", False)]
    held = scene.held("held")
    scene.settle(Claim(held.id, held.claim_version, "held"), "dead", reason="x")
    beside = second(scene, "held")
    scene.settle(beside, "dead", reason="x")
    assert retry(scene, beside.id) == [("held", False)]
    pruned = scene.dead("pruned")
    scene.sql("UPDATE outbox.ended_job SET payload = NULL WHERE id = %s", pruned.id)
    assert retry(scene, pruned.id) == [("payload_pruned", False)]
    late = scene.dead("late")
    scene.sql("UPDATE outbox.ended_job SET expires_at = now() WHERE id = %s", late.id)
    assert retry(scene, late.id) == [("expired", False)]
    assert len(ends(scene)) == 4
    assert retry(scene, late.id, ignore_expiry=True) == [(None, False)]
    assert live(scene, late.id)["expires_at"] is None


def test_a_refused_retry_reopens_nothing(scene: Scene) -> None:
    """Its effect was refused, and its payload is gone."""
    dead = scene.rejected("k")
    scene.sql("UPDATE outbox.ended_job SET payload = NULL")
    assert retry(scene, dead.id) == [("payload_pruned", False)]
    assert scene.effect("k")["state"] == "rejected"


def test_a_retry_keeps_an_end_that_is_still_to_come(scene: Scene) -> None:
    """A job that may still expire may still expire."""
    dead = scene.dead("k")
    scene.sql("UPDATE outbox.ended_job SET expires_at = now() + interval '1 hour'")
    retry(scene, dead.id)
    assert live(scene, dead.id)["expires_at"] is not None


def test_what_was_given_up_and_may_have_been_sent_needs_a_word(scene: Scene) -> None:
    """The word, and nothing else about it."""
    dead, other = scene.rejected("k"), scene.rejected("l")
    scene.sql("UPDATE outbox.effect SET state = 'given_up'")
    scene.sql("UPDATE outbox.effect SET open_since = now() WHERE effect_key = 'k'")
    assert retry(scene, dead.id) == [("may_have_been_sent", False)]
    assert retry(scene, other.id) == [(None, False)]
    assert retry(scene, dead.id, send_again=True) == [(None, False)]


@pytest.mark.parametrize("changed", [{"topic": "other"}, {"payload": {"another": 1}}])
@pytest.mark.parametrize("state", ["delivered", "rejected"])
def test_another_effect_of_the_key_is_no_reason_but_a_conflict(
    scene: Scene, changed: Row, state: str
) -> None:
    """Such a job comes back, will end the same way, and leaves that effect alone."""
    if state == "delivered":
        scene.delivered("k")
    else:
        scene.rejected("k")
    dead = scene.dead("k", "effect_key_conflict", **changed)
    before = scene.effect("k")
    assert retry(scene, dead.id) == [(None, True)]
    assert scene.effect("k") == before


def test_jobs_come_back_in_their_old_order(scene: Scene) -> None:
    """By id; those of a line get into it again."""
    ids = [scene.dead(key).id for key in ("c", "a", "b")]
    scene.sql("UPDATE outbox.ended_job SET ordering_key = 'line' WHERE id = %s", ids[2])
    retry(scene, *ids[::-1])
    assert scene.sql("SELECT effect_key FROM outbox.job ORDER BY position NULLS LAST") == [
        ("c",), ("a",), ("b",),
    ]  # fmt: skip
    assert live(scene, ids[2])["waiting"] == "order"


def resolve(scene: Scene, resolution: str, *ids: int, key: str = "k") -> int:
    """Decide about a key; how many effects that was."""
    rows = scene.run(
        "resolve_effects", effect_keys=[key], job_ids=list(ids), resolution=resolution,
        message_id=None, detail="by a person",
    )  # fmt: skip
    return len(rows)


#: What a person says, what the ledger says then, whether it is open, and what the two jobs are.
RESOLVED = [
    ("delivered", "delivered", False, [("k", "duplicate", "delivered")]),
    ("give_up", "given_up", True, [("k", "dead", "given_up"), ("k", "dead", "given_up")]),
    ("send_again", "open", False, []),
]


@pytest.mark.parametrize(("said", "state", "open_", "ended"), RESOLVED)
def test_a_decision_settles_the_effect_and_the_jobs_beside_it(
    scene: Scene, said: str, state: str, ended: list[tuple[str, str, str]], *, open_: bool
) -> None:
    """Each job ends or goes on; whoever came since, and other keys' jobs and effects, stay."""
    held = scene.held("k")
    other = scene.held("l")
    beside = second(scene)
    scene.settle(beside, "hold", reason="held")
    since = second(scene)
    scene.settle(since, "hold", reason="held")
    scene.sql(
        "UPDATE outbox.job SET expires_at = now(), retry_first = true, attempts = 5;"
        "UPDATE outbox.effect SET provider_message_id = 'known'"
    )
    # Another key's job is named by mistake: its own effect was not decided about.
    assert resolve(scene, said, held.id, beside.id, other.id) == 1
    effect = scene.effect("k")
    assert (effect["state"], effect["open_since"] is not None) == (state, open_)
    assert (effect["settled_at"] is None) == (state == "open")
    assert effect["request"] == (b"request" if state == "open" else None)
    assert effect["provider_message_id"] == "known"
    assert effect["detail"] == "by a person; held before: no_memory: reset"
    assert ends(scene) == ended
    if said == "send_again":
        for id_ in (held.id, beside.id):
            row = live(scene, id_)
            assert (row["waiting"], row["attempts"], row["retry_first"]) == (None, 0, False)
            assert row["expires_at"] is None
    else:
        assert job(scene, held.id) is None
        assert job(scene, beside.id) is None
    for id_ in (since.id, other.id):
        assert live(scene, id_)["waiting"] == "resolve"
    assert scene.effect("l")["state"] == "held"


@pytest.mark.parametrize("said", ["delivered", "give_up", "send_again"])
@pytest.mark.parametrize("state", ["open", "delivered", "rejected"])
def test_what_is_not_held_is_not_decided_about(scene: Scene, said: str, state: str) -> None:
    """It never was, or somebody else was faster."""
    claim = scene.begun("k")
    if state != "open":
        scene.settle(claim, "done" if state == "delivered" else "dead", state, reason="x")
    before = scene.effect("k")
    assert resolve(scene, said, claim.id) == 0
    assert scene.effect("k") == before


# -- retention -----------------------------------------------------------------------------------


def prune(scene: Scene, days: float = 1, limit: int = 9, **after: object) -> list[int]:
    """Clear the payloads of dead jobs; their ids."""
    start: Row = {"after_ended_at": "-infinity", "after_id": 0} | after
    rows = scene.run("prune_ended_jobs", ended_as="dead", days=days, limit=limit, **start)
    return [row["id"] for row in rows]


def ended_days_ago(scene: Scene, days: dict[str, float]) -> list[int]:
    """Dead jobs that ended so long ago, each with a request that surely was not sent."""
    ids = []
    for key, ago in days.items():
        claim = scene.begun(key)
        scene.settle(claim, "dead", "open", reason="max_attempts", nothing_open=True)
        scene.sql(
            "UPDATE outbox.ended_job SET ended_at = now() - %s * interval '1 day' WHERE id = %s",
            ago, claim.id,
        )  # fmt: skip
        ids.append(claim.id)
    return ids


@pytest.mark.parametrize("indexes", ["on", "off"])
def test_the_oldest_payloads_go_first_a_batch_at_a_time(scene: Scene, indexes: str) -> None:
    """Those of this end, of so long ago, once each; rows and keys stay."""
    scene.sql("TRUNCATE outbox.ended_job")
    for kind in ("indexscan", "bitmapscan"):
        scene.sql(f"SET LOCAL enable_{kind} = {indexes}")
    young, old, oldest, other = ended_days_ago(
        scene, {"young": 0.5, "old": 2, "oldest": 3, "cancelled": 4}
    )
    scene.sql("UPDATE outbox.ended_job SET ended_as = 'cancelled' WHERE id = %s", other)
    assert prune(scene, limit=1) == [oldest]
    assert prune(scene) == [old]
    assert prune(scene) == []
    assert scene.sql("SELECT id FROM outbox.ended_job WHERE payload IS NOT NULL ORDER BY id") == [
        (young,), (other,),
    ]  # fmt: skip
    assert scene.sql("SELECT effect_key FROM outbox.effect WHERE request IS NULL ORDER BY 1") == [
        ("old",), ("oldest",),
    ]  # fmt: skip


def test_a_batch_starts_where_the_last_one_ended(scene: Scene) -> None:
    """What comes before is not looked at again."""
    first, last = ended_days_ago(scene, {"first": 3, "last": 2})
    ((moment,),) = scene.sql("SELECT ended_at FROM outbox.ended_job WHERE id = %s", first)
    assert prune(scene, after_ended_at=moment, after_id=first) == [last]


@pytest.mark.parametrize(
    "why",
    ["open_since = now()", "state = 'held', open_since = now()", "job_id = job_id + 1000"],
)
def test_a_request_that_is_not_the_pruned_jobs_alone_stays(scene: Scene, why: str) -> None:
    """It may have been sent, is held, or is another job's by now."""
    ended_days_ago(scene, {"k": 2})
    scene.sql(f"UPDATE outbox.effect SET {why}")
    assert len(prune(scene)) == 1
    assert scene.effect("k")["request"] == b"request"


def test_only_the_pruned_jobs_requests_are_forgotten(scene: Scene) -> None:
    """No other key's, even if a row had the same job's number."""
    scene.begun("bystander")
    scene.sql("UPDATE outbox.effect SET open_since = NULL")
    (pruned,) = ended_days_ago(scene, {"k": 2})
    scene.sql("UPDATE outbox.effect SET job_id = %s", pruned)
    prune(scene)
    assert scene.effect("k")["request"] is None
    assert scene.effect("bystander")["request"] == b"request"
