"""Processes that are told what to do."""

from __future__ import annotations

from multiprocessing.connection import Connection as Link

from benchmarks.crew import crew, listening, messages, peak_megabytes, run, together

#: More than the buffer of a pipe or socket holds.
LONG = 10_000_000


def answering(link: Link) -> None:
    """Be a process whose loop answers each message with very many bytes."""
    link.send("ready")
    run(_answering(link))


async def _answering(link: Link) -> None:
    with listening(link, lambda: b"x" * LONG) as gone:
        await gone.wait()


def test_a_long_answer_arrives_whole() -> None:
    """Uvloop makes what it listens to non-blocking, and an answer would break off."""
    with crew(answering, (), ()) as workers:
        answers = together(workers, "go on")
    assert [len(answer) for answer in answers] == [LONG, LONG]


def weighed(link: Link) -> None:
    """Be a process that says how much memory it has held."""
    for _ in messages(link):
        link.send(peak_megabytes())


def test_a_large_parent_makes_no_large_child() -> None:
    """What a process was before its exec, a copy of its parent, is not its own memory."""
    ballast = bytearray(400_000_000)
    with crew(weighed, ()) as (worker,):
        worker.tell("how much?")
        assert worker.receive() < 300 < peak_megabytes()
    del ballast
