"""docs/benchmarks.md, written from the JSON lines of a run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import plots
from benchmarks.targets import TARGETS, Read

DOCUMENT = Path("docs/benchmarks.md")
PLOTS = Path("docs/benchmarks")
#: Words of people about the figures; they come after the targets.
NOTES = PLOTS / "notes.md"
_TITLES = {
    "enqueue": "Enqueue: what a job costs its transaction",
    "drain": "Drain: no-op effects through the full way",
    "email": "E-mail: the real consumer over HTTP",
    "latency": "Latency: commit to arrival",
    "flat": "Flat: does the rate hold",
    "backlog": "Backlog: behind many waiting jobs",
    "cost": "Cost of an e-mail",
    "memory": "Memory: one e-mail after the other",
    "peers": "Peers",
}
_HOW = """\
Rendered by `python -m benchmarks report` from the lines of one run (`make bench ARGS="--full
--out docs/benchmarks/run.jsonl"`), which are beside the plots. Each figure is the median of several
rounds, with the least and the largest. The contenders of a comparison take turns within each round,
and ratios are formed round by round: they say something on a noisy machine, absolute figures say
little beyond the one they were measured on. After each round the jobs, the ledger and the other
side's count are compared: a figure stands only where every job ran exactly once. The server is
PostgreSQL with its default durability (fsync, synchronous_commit and full_page_writes on; else the
run is refused), on the same machine as everything else.

The peers are optional, and what is missing is skipped with a word. They live in places of their
own, which git ignores; oban needs Python 3.12, graphile-worker and pg-boss Node.js 22, which
`node@22` brings where the one on the path is older:

    python3.12 -m venv benchmarks/peers/.venv
    benchmarks/peers/.venv/bin/pip install -r benchmarks/peers/requirements.txt
    npm install --prefix benchmarks/peers --no-save --no-package-lock node@22

`OUTBOX_BENCH_PEERS_PYTHON` names another interpreter that has the Python peers.
"""
_QUICK = """\
**This was a quick run**, of some seconds a benchmark, as one does while developing: it shows that
everything works, and where to look. Targets that ask for more jobs were not measured.
"""


def write(results: Path) -> None:
    """Render the report and its plots."""
    lines: list[Read] = [json.loads(text) for text in results.read_text().splitlines() if text]
    PLOTS.mkdir(parents=True, exist_ok=True)
    DOCUMENT.write_text("\n".join(_document(lines)))


def _document(lines: Sequence[Read]) -> Iterator[str]:
    yield "# Benchmarks\n"
    yield _HOW
    if not any(line["full"] for line in lines):
        yield _QUICK
    yield from _surroundings(lines)
    yield from _targets(lines)
    if NOTES.exists():
        yield NOTES.read_text("utf-8")
    for kind, title in _TITLES.items():
        of_kind = [line for line in lines if line["kind"] == kind]
        if of_kind:
            yield f"\n## {title}\n"
            yield from _plots(kind, of_kind)
            for line in of_kind:
                yield from _table(line)


def _surroundings(lines: Sequence[Read]) -> Iterator[str]:
    machine, versions = lines[-1]["machine"], lines[-1]["versions"]
    loads = [line["machine"]["load"] for line in lines]
    commits = ", ".join(dict.fromkeys(line["commit"] for line in lines))
    yield (
        f"Machine: {machine['cores']} cores ({machine['cpu']}), {machine['memory_gb']} GB, "
        f"{machine['system']}; load average {min(loads):g} to {max(loads):g} over the run. "
        f"Commit: {commits}. "
        + ", ".join(f"{name} {version}" for name, version in versions.items())
        + ".\n"
    )


def _targets(lines: Sequence[Read]) -> Iterator[str]:
    yield "## Against the targets\n"
    yield "| figure | target | measured | |"
    yield "|---|---|---|---|"
    for target in TARGETS:
        value = target.measured(lines)
        if value is None:
            yield f"| {target.what} | {target.bound} | | not measured in this run |"
        else:
            word = "met" if target.met(value) else "**fell short**"
            yield f"| {target.what} | {target.bound} | {_number(value)} | {word} |"
    yield ""


def _table(line: Read) -> Iterator[str]:
    yield f"### {line['case']}\n"
    if line["figures"]:
        yield "| | median | least | largest | unit |"
        yield "|---|---|---|---|---|"
    for name, figure in (line["figures"] | line["ratios"]).items():
        numbers = (_number(figure[part]) for part in ("median", "min", "max"))
        yield f"| {name} | {' | '.join(numbers)} | {figure['unit']} |"
    settings = ", ".join(f"{name} {value}" for name, value in line["settings"].items())
    notes = [line["words"], settings, f"checked: {line['checked']}"]
    yield "\n" + "; ".join(note for note in notes if note) + ".\n"


def _plots(kind: str, lines: Sequence[Read]) -> Iterator[str]:
    rounds: dict[str, Any] = {
        line["case"]: line["figures"]["rate"]["values"]
        for line in lines
        if line["case"].startswith("ten rounds")
    }
    if rounds:
        yield _plot("flat-rounds", "Ten rounds", plots.lines("Ten rounds", rounds, "jobs/s"))
    for line in lines:
        rates = {n: f["median"] for n, f in line["figures"].items() if f["unit"] == "jobs/s"}
        if kind in {"drain", "peers"} and len(rates) > 1:
            name = "".join(c if c.isalnum() else "-" for c in f"{kind}-{line['case']}".lower())
            yield _plot(name, line["case"], plots.bars(line["case"], rates, "jobs/s"))


def _plot(name: str, title: str, svg: str) -> str:
    (PLOTS / f"{name}.svg").write_text(svg)
    return f"![{title}](benchmarks/{name}.svg)\n"


def _number(value: float) -> str:
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
