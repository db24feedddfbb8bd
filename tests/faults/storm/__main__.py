"""The command: ``python -m tests.faults.storm``."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from tests.faults.storm.campaign import Campaign, State, aims, chosen, impossible, replay
from tests.faults.storm.evidence import render
from tests.faults.storm.history import Chapter
from tests.faults.storm.kinds import KINDS
from tests.faults.storm.lives import ROOT
from tests.faults.storm.trace import trace

_EPILOG = """\
Exit codes: 0 all faults as planned, and nothing wrong; 1 a promise is broken, with the words that
replay it; 2 wrong use; 3 nothing wrong, but fewer faults than planned (time was over).
Kinds and the long run's aims: """
TRACED = 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it, and return the exit code."""
    signal.signal(signal.SIGTERM, _end)
    given = _parser().parse_args(arguments)
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    state_file = (given.resume or ROOT / "build" / "storm" / f"{stamp}.jsonl").absolute()
    directory = state_file.with_suffix("")
    if given.replay is not None:
        return _replay(directory, given)
    kinds = given.kinds or chosen(given.faults)
    for name, reason in impossible().items():
        _say(f"not on this machine: {name} ({reason})")
        if name in kinds:
            return 2
    plan = aims(kinds, given.faults)
    state = State.open(state_file)
    _say(f"{sum(plan.values())} faults: {', '.join(f'{n} {k}' for k, n in plan.items())}")
    _say(f"state: {state_file} (--resume goes on from there)")
    campaign = Campaign(
        state, plan, given.seed, given.minutes * 60, directory, given.plant, given.keep_going
    )
    clean = campaign.run(_say)
    whole = given.faults is None and given.kinds is None and given.plant is None
    evidence = given.evidence or (ROOT / "docs/evidence.md" if whole else directory / "evidence.md")
    evidence.write_text(render(state))
    _say(f"written: {evidence}")
    if not clean:
        _explain(state)
        return 1
    return 0 if campaign.next() is None else 3


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults.storm",
        description="Thousands of faults of each kind, each counted alone, every history judged.",
        epilog=_EPILOG + ", ".join(f"{kind.name} {kind.aim}" for kind in KINDS.values()),
    )
    parser.add_argument("--kinds", type=_kinds, help="only these, with commas between them")
    parser.add_argument("--faults", type=int, help="so many in all (default: the aims)")
    parser.add_argument("--seed", type=int, default=1, help="the first one (default: 1)")
    parser.add_argument("--minutes", type=float, default=600.0, help="begin nothing after that")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="the state file to go on from")
    parser.add_argument("--evidence", type=Path, metavar="FILE", help="where to write the page")
    parser.add_argument("--keep-going", action="store_true", help="also after something is wrong")
    parser.add_argument("--replay", type=_chapter, metavar="KIND:keys|none:SEED")
    parser.add_argument("--plant", metavar="MODULE:FUNCTION", help="break each consumer first")
    return parser


def _kinds(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in KINDS:
            raise argparse.ArgumentTypeError(f"{name}: choose from {', '.join(KINDS)}")
    return names


def _chapter(text: str) -> Chapter:
    try:
        chapter = Chapter.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    _kinds(chapter.kind)
    return chapter


def _replay(directory: Path, given: argparse.Namespace) -> int:
    result = replay(directory, given.replay, given.faults, given.plant)
    _say(json.dumps(result.as_json(), indent=2))
    _trace(result.directory, list(result.problems))
    return 0 if result.clean else 1


def _explain(state: State) -> None:
    for line in state.of("history"):
        if line["problems"]:
            faults = line["planned"]
            _say(f"\n{line['chapter']}: {line['problems']}")
            _say(
                f"again: python -m tests.faults.storm --replay {line['chapter']} --faults {faults}"
            )
            _trace(line["directory"], list(line["problems"]))


def _trace(directory: str | None, keys: list[str]) -> None:
    if directory is None:
        return
    _say(f"all that it has written: {directory}")
    for key in [key for key in keys if key.startswith("email-")][:TRACED]:
        _say(f"\n{key}")
        for line in trace(Path(directory), key):
            _say(line)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _end(number: int, _: FrameType | None) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
