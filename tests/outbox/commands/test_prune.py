"""``outbox prune``: payloads go after retention, rows and keys stay."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

    from outbox.operator import Operator
    from tests.outbox.commands.conftest import Command
    from tests.outbox.commands.scenes import Scene

from outbox.retention import prune


def age(scene: Scene, days: int) -> None:
    """Let all ended jobs have ended so long ago."""
    scene.sql("UPDATE outbox.ended_job SET ended_at = now() - %s * interval '1 day'", days)


def test_old_payloads_go_and_everything_else_stays(command: Command, scene: Scene) -> None:
    """The row, its reason and the ledger's key are there for ever; younger payloads stay."""
    old = scene.rejected("k-old")
    age(scene, 31)
    young = scene.dead("k-young")
    delivered = scene.delivered("k-delivered")
    answer = command("prune", "--json")
    assert (answer.code, answer.json) == (0, {"payloads_cleared": 1, "dry_run": False})
    payloads = scene.sql("SELECT id, payload IS NULL FROM outbox.ended_job ORDER BY id")
    assert payloads == [(old.id, True), (young.id, False)]
    assert scene.state(old.id) == ("dead", "rejected")
    assert scene.effect("k-old")["state"] == "rejected"
    assert scene.effect("k-delivered")["job_id"] == delivered.id
    assert command("prune").out.startswith("cleared 0 payloads")


def test_a_dry_run_only_counts(command: Command, scene: Scene) -> None:
    """What would go is counted, and stays."""
    scene.dead("k-1")
    age(scene, 3)
    dry = command("prune", "--ended-before-days", 2, "--dry-run", "--json").json
    assert dry == {"payloads_cleared": 1, "dry_run": True}
    assert command("prune", "--ended-before-days", 4).out.startswith("cleared 0 payloads")
    assert scene.sql("SELECT payload IS NULL FROM outbox.ended_job") == [(False,)]


def test_a_job_without_its_payload_can_not_be_retried(command: Command, scene: Scene) -> None:
    """The retry says so, in a line."""
    claim = scene.dead("k-1")
    assert command("prune", "--ended-before-days", 0).code == 0
    answer = command("retry", claim.id)
    assert answer.code == 1
    assert "its payload is gone (retention)" in answer.err
    assert "gone" in command("jobs", "show", claim.id, "--payload").out


def test_a_request_that_nobody_will_send_goes_with_its_job(command: Command, scene: Scene) -> None:
    """Cancelled with nothing open: the frozen bytes hold an address, the key stays."""
    claim = scene.backing_off("k-1", reached=False)
    assert command("cancel", claim.id).code == 0
    assert command("prune", "--ended-before-days", 0).code == 0
    effect = scene.effect("k-1")
    assert (effect["state"], effect["request"]) == ("open", None)
    assert effect["request_hash"] is not None


def test_requests_that_may_still_be_needed_stay(command: Command, scene: Scene) -> None:
    """A live job's request is not dropped because another job of its key has ended."""
    cancelled = scene.enqueue("k-1")
    assert command("cancel", cancelled).code == 0
    scene.backing_off("k-1", reached=False)
    scene.held("k-held")
    assert command("prune", "--ended-before-days", 0, "--json").json["payloads_cleared"] == 1
    assert scene.effect("k-1")["request"] == b"request"
    assert scene.effect("k-held")["request"] == b"request"


def test_it_goes_in_small_batches(
    scene: Scene, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each batch is a short transaction, and none is forgotten between two of them."""
    monkeypatch.setattr("outbox.retention._BATCH", 2)
    for number in range(5):
        scene.dead(f"k-{number}")
    scene.run("cancel_jobs", job_ids=[scene.enqueue("k-9")])
    age(scene, 1)
    assert list(prune(operator, 0.5)) == [2, 2, 1, 1]
    assert scene.sql("SELECT count(payload) FROM outbox.ended_job") == [(0,)]
