"""``python -m benchmarks [KIND ...] [--full] [--out FILE]``, or ``report`` as the KIND."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

from benchmarks.record import Line, environment
from benchmarks.server import Server

#: Where each kind is measured.
KINDS = {
    "enqueue": "benchmarks.enqueue",
    "drain": "benchmarks.drain",
    "email": "benchmarks.email",
    "latency": "benchmarks.latency",
    "flat": "benchmarks.flat",
    "backlog": "benchmarks.backlog",
    "cost": "benchmarks.cost",
    "memory": "benchmarks.memory",
    "peers": "benchmarks.peers.comparison",
}
RESULTS = Path("docs/benchmarks/run.jsonl")


def main() -> int:
    """Run the benchmarks that are asked for, one JSON line each."""
    wish = _wish()
    if wish.kinds == ["report"]:
        from benchmarks import report

        report.write(wish.out or RESULTS)
        return 0
    # A developer's own settings change nothing here.
    for name in [name for name in os.environ if name.startswith(("OUTBOX_", "EMAIL_"))]:
        if not name.startswith(("OUTBOX_BENCH_", "OUTBOX_EMBEDDED_")):
            del os.environ[name]
    server = Server.start()
    try:
        for kind in wish.kinds or KINDS:
            run: Callable[..., Iterator[Line]] = import_module(KINDS[kind]).run
            for line in run(server, full=wish.full):
                _put(line.as_json(environment(server.version, full=wish.full)), wish.out)
    finally:
        server.stop()
    return 0


def _wish() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "kinds",
        nargs="*",
        metavar="KIND",
        choices=(*KINDS, "report"),
        help=f"one or more of {', '.join(KINDS)} (all of them if none is named), or report",
    )
    parser.add_argument(
        "--full", action="store_true", help="as long as the figures need; else some seconds each"
    )
    parser.add_argument(
        "--out", type=Path, help=f"append the lines to FILE (report reads it; else {RESULTS})"
    )
    return parser.parse_args()


def _put(line: str, out: Path | None) -> None:
    print(line, flush=True)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        with out.open("a") as file:
            file.write(line + "\n")


if __name__ == "__main__":
    sys.exit(main())
