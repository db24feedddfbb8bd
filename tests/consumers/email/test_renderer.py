"""Rendering on threads: bounded in time, and in nobody's way."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest

from consumers.email import render_worker
from consumers.email.renderer import Renderer
from outbox.gateway import Unrenderable
from tests.waiting import aeventually, eventually


def render_threads() -> int:
    """How many threads render."""
    return sum(thread.name == "render" for thread in threading.enumerate())


@pytest.fixture
async def renderer() -> AsyncIterator[Renderer]:
    """A renderer with little patience, whose threads end with the test."""
    renderer = Renderer(seconds_max=0.3)
    yield renderer
    renderer.close()
    eventually(lambda: render_threads() == 0)


def endless() -> None:
    """Loop in Python."""
    while True:
        pass


async def test_a_result_comes_back_from_another_thread(renderer: Renderer) -> None:
    """The event loop's own thread renders nothing."""
    assert await renderer.run(threading.get_ident) != threading.get_ident()


async def test_a_thread_is_used_again(renderer: Renderer) -> None:
    """One after the other."""
    assert len({await renderer.run(threading.get_ident) for _ in range(20)}) == 1


async def test_few_threads_serve_many_renders(renderer: Renderer) -> None:
    """They share one interpreter anyway."""
    identities = await asyncio.gather(*[renderer.run(threading.get_ident) for _ in range(200)])
    assert len(set(identities)) <= 4


async def test_what_is_done_together_is_handed_back_together(
    renderer: Renderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop is woken once for all that was rendered while it was busy."""
    loop = asyncio.get_running_loop()
    wakings = 0
    wake = loop.call_soon_threadsafe

    def counted(*arguments: Any) -> asyncio.Handle:
        nonlocal wakings
        wakings += 1
        return wake(*arguments)

    monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
    done: list[int] = []
    tasks = [asyncio.create_task(renderer.run(partial(done.append, n))) for n in range(200)]
    loop.call_soon(lambda: eventually(lambda: len(done) == 200))
    await asyncio.gather(*tasks)
    assert (wakings, done) == (1, list(range(200)))


async def test_a_render_that_ends_as_it_is_stopped_takes_no_other_with_it() -> None:
    """Renders that take about as long as they may: each comes back, in one way or the other."""
    renderer = Renderer(seconds_max=0.01)

    def work(number: int) -> int:
        ends = time.monotonic() + 0.008 + number % 10 / 1000
        while time.monotonic() < ends:
            pass
        return number

    tasks = [asyncio.create_task(renderer.run(partial(work, number))) for number in range(200)]
    results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 30)
    for number, result in enumerate(results):
        assert result == number or isinstance(result, Unrenderable)
    renderer.close()


async def test_an_endless_render_ends_and_its_thread_too(renderer: Renderer) -> None:
    """The job is told why, and nothing goes on burning the processor."""
    with pytest.raises(Unrenderable, match=r"^rendering took longer than 0\.3 s$"):
        await renderer.run(endless)
    eventually(lambda: render_threads() == 0)


async def test_endless_renders_hold_nobody_up(renderer: Renderer) -> None:
    """More of them than places, and a good one behind them is done long before they end."""
    patient = Renderer(seconds_max=20)
    bad = [asyncio.create_task(patient.run(endless)) for _ in range(6)]
    good = asyncio.create_task(patient.run(lambda: "good"))
    assert await asyncio.wait_for(good, 10) == "good"
    assert not any(task.done() for task in bad)
    for task in bad:
        task.cancel()
    await asyncio.gather(*bad, return_exceptions=True)
    patient.close()


async def test_a_slow_render_within_the_limit_is_fine() -> None:
    """Slower than quick, and still wanted."""
    renderer = Renderer(seconds_max=20)
    release = threading.Event()
    result = asyncio.create_task(renderer.run(lambda: release.wait(10)))
    await asyncio.wait([result], timeout=0.2)
    assert not result.done()
    release.set()
    assert await result is True
    renderer.close()


async def test_cancelling_the_waiter_stops_the_work(renderer: Renderer) -> None:
    """A job whose consumer gives it up leaves no thread behind."""
    started = threading.Event()

    def work() -> None:
        started.set()
        endless()

    task = asyncio.create_task(renderer.run(work))
    await asyncio.to_thread(started.wait, 5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    eventually(lambda: render_threads() == 0)


async def test_the_reason_of_an_unrenderable_payload_passes_through(renderer: Renderer) -> None:
    """As it was raised."""

    def work() -> None:
        raise Unrenderable("payload.id: missing")

    with pytest.raises(Unrenderable, match=r"^payload\.id: missing$"):
        await renderer.run(work)


class Panic(BaseException):
    """As a library in Rust raises it."""


@pytest.mark.parametrize(
    "kind", [KeyError, MemoryError, StopIteration, SystemExit, GeneratorExit, KeyboardInterrupt,
             asyncio.CancelledError, Panic],
)  # fmt: skip
async def test_any_other_error_is_named_by_its_type(
    renderer: Renderer, kind: type[BaseException]
) -> None:
    """Nothing that is raised in a render ends the consumer or its thread."""

    def work() -> None:
        raise kind("jane@example.com")

    with pytest.raises(Unrenderable, match=rf"^rendering raised {kind.__name__}$"):
        await renderer.run(work)
    assert await renderer.run(lambda: 7) == 7


async def test_a_thread_is_stopped_once(
    renderer: Renderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that can't be reached for a while: a second word might meet it anywhere."""
    stopped: list[int] = []
    monkeypatch.setattr(render_worker, "_raise_in_thread", stopped.append)
    release = threading.Event()
    with pytest.raises(Unrenderable):
        await renderer.run(lambda: release.wait(30))
    with pytest.raises(Unrenderable):
        await renderer.run(lambda: release.wait(30))
    assert len(stopped) == len(set(stopped)) == 2
    release.set()


async def test_a_render_whose_thread_ends_is_not_waited_for(
    renderer: Renderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever ended it; and the next one is served."""
    run = render_worker.Render.run

    def die(_: render_worker.Render) -> None:
        raise _Ended

    class _Ended(BaseException):
        pass

    monkeypatch.setattr(threading, "excepthook", lambda *_: None)
    monkeypatch.setattr(render_worker.Render, "run", die)
    with pytest.raises(Unrenderable, match=r"^the thread of its rendering ended$"):
        await asyncio.wait_for(renderer.run(int), 10)
    monkeypatch.setattr(render_worker.Render, "run", run)
    assert await asyncio.wait_for(renderer.run(lambda: 7), 10) == 7


async def test_a_thread_that_cant_be_started_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A limit of threads is reached: nobody waits for ever, and no render is forgotten."""
    refusals = 2
    start = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        nonlocal refusals
        if thread.name == "render" and refusals > 0:
            refusals -= 1
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refused)
    renderer = Renderer(seconds_max=0.3)
    bad = asyncio.create_task(renderer.run(endless))
    assert await asyncio.wait_for(renderer.run(lambda: 7), 10) == 7
    with pytest.raises(Unrenderable):
        await asyncio.wait_for(bad, 10)
    assert "no thread for rendering: can't start new thread" in caplog.text
    renderer.close()
    eventually(lambda: render_threads() == 0)


async def test_the_event_loop_goes_on_while_a_render_loops(renderer: Renderer) -> None:
    """Heartbeats and other jobs run meanwhile."""
    ticks = 0

    async def looked() -> bool:
        nonlocal ticks
        ticks += 1
        return task.done()

    task = asyncio.create_task(renderer.run(endless))
    started = time.monotonic()
    await aeventually(looked)
    assert ticks > 5
    assert time.monotonic() - started < 10
    with pytest.raises(Unrenderable):
        await task
