"""``outbox effects resolve``: a person's decision about held effects, once and for all jobs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import psycopg
import pytest

from outbox.operator import connect
from outbox.resolve import Resolution, Resolved, resolve
from tests.outbox.commands.scenes import TOPIC

if TYPE_CHECKING:
    from tests.outbox.commands.conftest import Command
    from tests.outbox.commands.scenes import Claim, Scene


def held_twice(scene: Scene, effect_key: str) -> tuple[Claim, Claim]:
    """A held effect with the job that tried it and another that waits beside it."""
    first = scene.held(effect_key)
    scene.enqueue(effect_key)
    (second,) = scene.claim()
    scene.settle(second, "hold", reason="held")
    return first, second


def test_delivered_settles_the_effect_and_all_its_jobs(command: Command, scene: Scene) -> None:
    """The job that tried is done, the one beside it a duplicate; no request stays behind."""
    first, second = held_twice(scene, "k-1")
    answer = command("effects", "resolve", "k-1", "--delivered", "--message-id", "re_1")
    assert (answer.code, answer.err) == (0, "")
    effect = scene.effect("k-1")
    assert (effect["state"], effect["provider_message_id"]) == ("delivered", "re_1")
    assert (effect["request"], effect["open_since"]) == (None, None)
    assert effect["settled_at"] is not None
    assert "resolved by a person" in effect["detail"]
    assert "no_memory: reset" in effect["detail"]
    assert scene.state(first.id) == ("done", "delivered")
    assert scene.state(second.id) == ("done", "duplicate")
    assert scene.sql("SELECT count(*) FROM outbox.job") == [(0,)]


def test_give_up_ends_its_jobs_dead_and_remembers_that_it_may_have_been_sent(
    command: Command, scene: Scene
) -> None:
    """Dead with a reason, so that they can be found; the ledger still knows of the open request."""
    first, second = held_twice(scene, "k-1")
    assert command("effects", "resolve", "k-1", "--give-up").code == 0
    effect = scene.effect("k-1")
    assert (effect["state"], effect["request"]) == ("given_up", None)
    assert effect["open_since"] is not None
    assert scene.state(first.id) == scene.state(second.id) == ("dead", "given_up")
    assert command("effects", "show", "k-1", "--json").json["may_have_been_sent"] is True


def test_send_again_brings_the_jobs_back_with_the_frozen_request(
    command: Command, scene: Scene
) -> None:
    """Same key, same bytes; nothing counts as open until the next begin; the fence goes on."""
    first, second = held_twice(scene, "k-1")
    answer = command("effects", "resolve", "k-1", "--send-again")
    assert answer.code == 0
    assert "this may make a second one" in answer.out
    effect = scene.effect("k-1")
    assert (effect["state"], effect["open_since"]) == ("open", None)
    assert effect["request"] == b"request"
    assert scene.state(first.id) == ("ready", "resolved by a person as send_again")
    claims = scene.claim(limit=2)
    assert [claim.id for claim in claims] == [first.id, second.id]
    assert claims[0].claim_version == first.claim_version + 1
    assert scene.sql("SELECT DISTINCT attempts FROM outbox.job") == [(1,)]
    assert scene.reopen(claims[0], requests_seen=1) == b"request"
    assert scene.effect("k-1")["open_since"] is not None


def test_send_again_is_not_called_off_by_an_old_expiry(command: Command, scene: Scene) -> None:
    """The request may have been sent, so a late expiry may not end the job as never sent."""
    claim = scene.held("k-1")
    scene.sql("UPDATE outbox.job SET expires_at = now() - interval '1 hour'")
    assert command("effects", "resolve", "k-1", "--send-again").code == 0
    assert scene.sql("SELECT expires_at FROM outbox.job WHERE id = %s", claim.id) == [(None,)]


@pytest.mark.parametrize("state", ["delivered", "rejected", "open", "given_up"])
def test_an_effect_that_is_not_held_is_left_alone(
    command: Command, scene: Scene, state: str
) -> None:
    """Exit code 1, with the state that it has; nothing changes."""
    match state:
        case "delivered":
            scene.delivered("k-1")
        case "rejected":
            scene.rejected("k-1")
        case "open":
            scene.begun("k-1")
        case _:
            scene.held("k-1")
            command("effects", "resolve", "k-1", "--give-up")
    before = scene.effect("k-1")
    answer = command("effects", "resolve", "k-1", "--send-again", "--json")
    assert answer.code == 1
    assert f"it is {state}, not held" in answer.err
    assert (answer.json["resolved"], answer.json["skipped"]) == (0, 1)
    assert scene.effect("k-1") == before


def test_an_unknown_key_is_a_no(command: Command) -> None:
    """The ledger has no such key."""
    answer = command("effects", "resolve", "k-9", "--delivered")
    assert answer.code == 1
    assert "the ledger has no such key" in answer.err


def test_a_topic_is_resolved_in_bulk(command: Command, scene: Scene) -> None:
    """All held effects of the topic, and no others."""
    for number in range(3):
        scene.held(f"a-{number}", topic="email.a")
    scene.held("b", topic="email.b")
    scene.delivered("a-9", topic="email.a")
    answer = command("effects", "resolve", "--topic", "email.a", "--delivered", "--json")
    assert (answer.code, answer.json["resolved"], answer.json["skipped"]) == (0, 3, 0)
    assert [effect["effect_key"] for effect in answer.json["effects"]] == ["a-0", "a-1", "a-2"]
    assert scene.effect("b")["state"] == "held"


def test_bulk_can_be_bound_by_time_and_number_and_tried_dry(command: Command, scene: Scene) -> None:
    """--before is about the last request, --limit about the number, --dry-run changes nothing."""
    scene.held("old-1")
    scene.held("old-2")
    scene.sql("UPDATE outbox.effect SET last_attempt_at = now() - interval '3 hours'")
    scene.held("new")
    dry = command("effects", "resolve", "--before", "2h", "--give-up", "--dry-run", "--json").json
    assert (dry["resolved"], dry["dry_run"]) == (2, True)
    assert scene.effect("old-1")["state"] == "held"
    one = command("effects", "resolve", "--before", "2h", "--limit", 1, "--give-up", "--json").json
    assert [effect["effect_key"] for effect in one["effects"]] == ["old-1"]
    rest = command("effects", "resolve", "--before", "2h", "--topic", TOPIC, "--give-up")
    assert (rest.code, scene.effect("old-2")["state"]) == (0, "given_up")
    assert scene.effect("new")["state"] == "held"
    nothing = command("effects", "resolve", "--before", "2h", "--give-up")
    assert (nothing.code, nothing.out) == (0, "resolved 0, skipped 0\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ("k-1",),
        ("k-1", "--delivered", "--give-up"),
        ("--delivered",),
        ("k-1", "--delivered", "--topic", TOPIC),
        ("k-1", "--give-up", "--message-id", "re_1"),
        ("--topic", TOPIC, "--delivered", "--message-id", "re_1"),
        ("--before", "yesterday", "--delivered"),
    ],
)
def test_arguments_that_make_no_sense_are_wrong_use(
    command: Command, scene: Scene, arguments: tuple[str, ...]
) -> None:
    """Exit code 2, a line that says why, and nothing is changed."""
    scene.held("k-1")
    answer = command("effects", "resolve", *arguments)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err
    assert scene.effect("k-1")["state"] == "held"


def test_of_two_people_at_once_one_decides_and_the_other_is_told(scene: Scene) -> None:
    """Both wait for the same rows; the second finds that the effect is no longer held."""
    first, _ = held_twice(scene, "k-1")

    def decide(resolution: Resolution) -> Resolved:
        with connect(scene.url) as operator:
            return resolve(operator, ["k-1"], resolution)[0]

    with ThreadPoolExecutor() as pool:
        with scene.lock("SELECT FROM outbox.job WHERE id = %s FOR UPDATE", first.id):
            answers = [
                pool.submit(decide, each) for each in (Resolution.DELIVERED, Resolution.SEND_AGAIN)
            ]
            scene.wait_for_blocked(2)
        results = [answer.result() for answer in answers]
    assert sorted(result.done for result in results) == [False, True]
    state = scene.effect("k-1")["state"]
    assert {result.state for result in results} == {state}
    live = scene.sql("SELECT count(*) FROM outbox.job")
    assert live == [(0,)] if state == "delivered" else live == [(2,)]


def test_a_late_acceptance_wins_over_a_decision_that_waited_for_it(scene: Scene) -> None:
    """Whoever has the acceptance in hand may still say so; the decision then finds nothing held."""
    claim = scene.held("k-1")

    def decide() -> Resolved:
        with connect(scene.url) as operator:
            return resolve(operator, ["k-1"], Resolution.SEND_AGAIN)[0]

    with ThreadPoolExecutor() as pool, psycopg.connect(scene.url) as late:
        scene.settle(claim, "done", "delivered", message_id="late", connection=late)
        answer = pool.submit(decide)
        scene.wait_for_blocked(1)
        late.commit()
        assert answer.result() == Resolved("k-1", done=False, state="delivered", jobs=1)
    assert scene.effect("k-1")["provider_message_id"] == "late"
    assert scene.run("release_held_jobs", limit=10)


def test_a_job_that_is_claimed_meanwhile_is_not_touched(command: Command, scene: Scene) -> None:
    """Only jobs that wait beside the effect are settled with it; another's claim goes on."""
    scene.held("k-1")
    other = scene.enqueue("k-1")
    (claim,) = scene.claim()
    assert command("effects", "resolve", "k-1", "--delivered").code == 0
    assert scene.state(other) == ("running", None)
    scene.settle(claim, "duplicate", reason="delivered")
    assert scene.state(other) == ("done", "duplicate")


def test_the_next_of_an_ordering_key_goes_on_after_a_decision(
    command: Command, scene: Scene
) -> None:
    """A held head blocks its line only until somebody decides."""
    scene.enqueue("k-1", ordering_key="o")
    second = scene.enqueue("k-2", ordering_key="o")
    scene.run("release_ordered_jobs", limit=10)
    (claim,) = scene.claim()
    assert scene.begin(claim)
    scene.settle(claim, "hold", "held", nothing_open=False, reason="no_memory")
    scene.run("release_ordered_jobs", limit=10)
    assert scene.state(second)[0] == "blocked"
    assert command("effects", "resolve", "k-1", "--give-up").code == 0
    scene.run("release_ordered_jobs", limit=10)
    assert scene.state(second)[0] == "ready"


def test_a_decision_wakes_consumers(command: Command, scene: Scene) -> None:
    """Jobs that are back need not wait for the next poll."""
    scene.held("k-1")
    with psycopg.connect(scene.url, autocommit=True) as listening:
        listening.execute("LISTEN outbox_ready")
        assert command("effects", "resolve", "k-1", "--send-again").code == 0
        heard = list(listening.notifies(timeout=5, stop_after=1))
    assert [notification.payload for notification in heard] == [TOPIC]


def test_an_effect_without_jobs_says_that_nobody_sends_it(command: Command, scene: Scene) -> None:
    """Somebody deleted the job by hand: the answer says what is missing."""
    scene.held("k-1")
    scene.sql("DELETE FROM outbox.job")
    answer = command("effects", "resolve", "k-1", "--send-again")
    assert answer.code == 0
    assert "no job waits for it" in answer.out
