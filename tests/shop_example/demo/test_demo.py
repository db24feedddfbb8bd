"""The demo itself, small: killed once, and then played to its end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.databases import Databases

DEMO = [sys.executable, "-m", "shop_example", "demo", "--orders", "20", "--kills", "2", "--json"]
MUST_BE_NONE = {
    "duplicates",
    "lost",
    "surplus_requests",
    "sent_for_rolled_back",
    "missing_holds",
    "needless_holds",
}


@pytest.fixture
def environment(databases: Databases, tmp_path: Path) -> Iterator[dict[str, str]]:
    """The tests' server, on which one demo at a time can run, and folders of its own."""
    key = "hashtextextended('test of the demo', 0)"
    databases.admin.execute(f"SELECT pg_advisory_lock({key})")
    yield {
        **os.environ,
        "OUTBOX_DATABASE_URL": databases.url,
        "XDG_DATA_HOME": str(tmp_path / "data"),
    }
    for name in ("outbox_demo_keys", "outbox_demo_no_keys"):
        databases.admin.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
    databases.admin.execute(f"SELECT pg_advisory_unlock({key})")


@pytest.mark.timeout(300)
def test_the_demo_ends_well_also_after_it_was_killed(
    environment: dict[str, str], tmp_path: Path
) -> None:
    """``kill -9`` in the middle leaves no process behind and nothing in the way of the next run."""
    log = tmp_path / "data" / "shop-example" / "demo" / "keys" / "consumer-1.log"
    with subprocess.Popen(
        DEMO, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as killed:
        assert killed.stdout is not None
        eventually(
            lambda: killed.poll() is not None or (log.exists() and log.stat().st_size), timeout=120
        )
        killed.kill()
        assert killed.stdout.read() == b""

    done = subprocess.run(DEMO, env=environment, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    with_keys, without_keys = (json.loads(line) for line in done.stdout.splitlines())
    for verdict in (with_keys, without_keys):
        assert (verdict["orders_committed"], verdict["kills"]) == (20, 2)
        assert {name: verdict[name] for name in MUST_BE_NONE} == dict.fromkeys(MUST_BE_NONE, 0)
    assert with_keys["provider_keys"] is True
    assert (with_keys["emails_accepted"], with_keys["held"]) == (20, 0)
    assert without_keys["provider_keys"] is False
