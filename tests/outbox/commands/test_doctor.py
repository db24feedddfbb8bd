"""``outbox doctor``: each finding with what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from outbox import doctor
from outbox.doctor import Verdict
from tests.outbox.commands.test_errors import as_role
from tests.waiting import eventually

if TYPE_CHECKING:
    from outbox.operator import Operator
    from tests.outbox.commands.conftest import Answer, Command
    from tests.outbox.commands.scenes import Scene


def finding(answer: Answer, name: str) -> tuple[str, str]:
    """The verdict and the message of one check."""
    (found,) = (check for check in answer.json["checks"] if check["name"] == name)
    return found["verdict"], found["message"]


def setting(scene: Scene, name: str, value: str) -> None:
    """Let new sessions of this database have a setting."""
    scene.sql(f"ALTER DATABASE \"{scene.connection.info.dbname}\" SET {name} = '{value}'")


def test_a_sound_database_passes(command: Command, scene: Scene) -> None:
    """Nothing fails; durability speaks of the server that the tests were given."""
    scene.note("email.a")
    answer = command("doctor", "--json")
    assert (answer.code, answer.json["ok"]) == (0, True)
    verdicts = {check["name"]: check["verdict"] for check in answer.json["checks"]}
    assert verdicts.pop("durability") in {"ok", "warn"}
    assert set(verdicts.values()) == {"ok"}, answer.out
    assert {"connection", "version", "schema", "notify", "snapshots", "privileges"} <= set(verdicts)
    assert "a notification arrives" in command("doctor").out


def test_no_connection_fails(command_anywhere: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 1, and the list ends there."""
    monkeypatch.setenv("OUTBOX_DATABASE_URL", "postgresql://joe:s3cret@127.0.0.1:1/shop")
    answer = command_anywhere("doctor", "--json")
    assert (answer.code, answer.json["ok"]) == (1, False)
    assert [check["verdict"] for check in answer.json["checks"]] == ["ok", "fail"]
    assert "s3cret" not in answer.out


def test_wrong_settings_fail(command_anywhere: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relation that makes no sense is the first finding."""
    monkeypatch.setenv("OUTBOX_HEARTBEAT_SECONDS", "59")
    answer = command_anywhere("doctor", "--json")
    assert answer.code == 1
    assert finding(answer, "settings")[0] == "fail"


def test_no_schema_fails(
    command_anywhere: Command, empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What can be said without the tables is said, and then the remedy."""
    monkeypatch.setenv("OUTBOX_DATABASE_URL", empty_database_url)
    answer = command_anywhere("doctor", "--json")
    assert answer.code == 1
    assert "run: outbox migrate" in finding(answer, "schema")[1]
    assert finding(answer, "version")[0] == "ok"


@pytest.mark.parametrize(
    ("name", "value", "check", "told"),
    [
        ("default_transaction_isolation", "serializable", "isolation", "serializable"),
        ("default_transaction_read_only", "on", "primary", "read-only by default"),
        ("statement_timeout", "5s", "timeouts", "statement_timeout = 5 s"),
        ("lock_timeout", "100ms", "timeouts", "lock_timeout = 0.1 s"),
        ("idle_session_timeout", "60s", "timeouts", "idle_session_timeout = 60 s"),
        ("synchronous_commit", "off", "durability", "synchronous_commit"),
    ],
)
def test_a_setting_that_harms_is_warned_of(
    command: Command, scene: Scene, name: str, value: str, check: str, told: str
) -> None:
    """A warning names the setting and the remedy, and is no failure."""
    setting(scene, name, value)
    answer = command("doctor", "--json")
    assert answer.code == 0
    verdict, message = finding(answer, check)
    assert verdict == "warn"
    assert told in message


def test_an_old_transaction_is_named(
    command: Command, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever holds back vacuum is told by process id and age."""
    monkeypatch.setattr(doctor, "SNAPSHOT_SECONDS", 0.0)
    with scene.lock("LOCK TABLE outbox.ended_job IN SHARE ROW EXCLUSIVE MODE") as other:
        other.execute("SELECT pg_current_xact_id()")
        verdict, message = finding(command("doctor", "--json"), "snapshots")
        assert verdict == "warn"
        assert f"pid {other.info.backend_pid}" in message


def test_a_pooler_that_swallows_notifications_is_found(
    operator: Operator, empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is sent in one database does not arrive in another, as behind a pooler."""
    monkeypatch.setattr(doctor, "NOTIFY_SECONDS", 0.1)
    check = doctor._notify(operator, empty_database_url)
    assert check.verdict is Verdict.WARN
    assert "at their next poll only" in check.message


def test_what_a_role_may_not_do_is_told(
    command: Command, database_url: str, monkeypatch: pytest.MonkeyPatch, scene: Scene
) -> None:
    """Each purpose with what it lacks."""
    scene.sql("GRANT USAGE ON SCHEMA outbox TO pg_monitor")
    scene.sql("GRANT SELECT ON ALL TABLES IN SCHEMA outbox TO pg_monitor")
    monkeypatch.setenv("OUTBOX_DATABASE_URL", as_role(database_url, "pg_monitor"))
    verdict, message = finding(command("doctor", "--json"), "privileges")
    assert verdict == "warn"
    assert "can't enqueue (lacks job INSERT, job_position USAGE)" in message
    assert "can't operate (lacks ended_job DELETE, ended_job UPDATE)" in message


def test_work_that_waits_for_somebody_is_told(command: Command, scene: Scene) -> None:
    """Consumers, unserved topics, held effects and dead jobs, each with the next command."""
    scene.held("k-1")
    scene.dead("k-2")
    scene.enqueue("k-3", topic="sms.reminder")
    answer = command("doctor", "--json")
    assert answer.code == 0
    told: dict[str, Any] = {
        "consumers": "start one",
        "unserved": "sms.reminder",
        "held": "outbox effects list --state held",
        "dead": "outbox jobs --state dead",
    }
    for name, text in told.items():
        verdict, message = finding(answer, name)
        assert (verdict, text in message) == ("warn", True)


def test_dead_rows_that_pile_up_are_told(
    operator: Operator, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More dead rows than live ones: vacuum does not keep up."""
    monkeypatch.setattr(doctor, "DEAD_TUPLES_MIN", 2)
    scene.sql("ALTER TABLE outbox.job SET (autovacuum_enabled = off)")
    for number in range(5):
        scene.run("cancel_jobs", job_ids=[scene.enqueue(f"k-{number}")])
    scene.connection.close()  # the server counts a session's rows at its end, at the latest
    check = eventually(lambda: _warning(doctor._vacuum(operator)))
    assert "VACUUM outbox.job" in check.message


def _warning(check: doctor.Check) -> doctor.Check | None:
    return check if check.verdict is Verdict.WARN else None
