"""The demo's story: two kinds of provider, a storm over each, the calm after it, and the count."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from shop_example.database import database_url, engine_of, without_password
from shop_example.demo import DemoFailed, databases, screen
from shop_example.demo.judge import Evidence, Held, judge
from shop_example.demo.leash import Leash
from shop_example.demo.processes import (
    RECORD,
    SHOW_SECONDS,
    Consumer,
    MailService,
    Place,
    clean_environment,
    consumer_settings,
    drain,
    held_effects,
)
from shop_example.demo.shoppers import plan
from shop_example.demo.storm import Progress, Storm
from shop_example.mail_service import RecordError, read_record
from shop_example.mail_service.events import Event, Received
from shop_example.mail_service.settings import default_record
from shop_example.orders import effect_key
from shop_example.tables import Order

CONSUMERS = ("consumer-1", "consumer-2")
#: How long the calm may take; it takes a lease, a full scan and a backoff, some seconds in all.
DRAIN_SECONDS_MAX = 120.0
#: The faults go on until so many requests an order have come, or for so long.
MOST, FAULTY_SECONDS_MAX = 0.95, 8.0


@dataclass(frozen=True, slots=True)
class Wish:
    """What the command line asks for; ``orders`` and ``kills`` are per provider."""

    orders: int
    kills: int
    seed: int
    as_json: bool


@dataclass(frozen=True, slots=True)
class Part:
    """One kind of provider, with the folder and the fresh database of its part of the demo."""

    provider_keys: bool
    wish: Wish
    place: Place
    database_url: str
    engine: Engine


def run(wish: Wish) -> int:
    """Play both parts, print what was found, and return the exit code.

    Raises:
        DemoFailed: it could not be carried out.
        OutboxError: no database server, or another demo runs there.
    """
    url = database_url()
    show = screen.print_json if wish.as_json else screen.print_summary
    clean = True
    with databases.server(url) as server, Leash() as leash:
        for provider_keys in (True, False):
            part = _prepare(wish, provider_keys, url, server, leash)
            evidence = _play(part, server)
            part.engine.dispose()
            verdict = judge(evidence)
            show(verdict, _traces(part, evidence))
            clean = clean and verdict.clean
    return 0 if clean else 1


def _prepare(
    wish: Wish, provider_keys: bool, url: str, server: psycopg.Connection[Any], leash: Leash
) -> Part:
    name = "keys" if provider_keys else "no-keys"
    place = Place(_fresh_directory(name), leash, clean_environment())
    fresh_url = databases.fresh(server, url, f"outbox_demo_{name.replace('-', '_')}")
    return Part(provider_keys, wish, place, fresh_url, engine_of(fresh_url, "shop demo"))


def _play(part: Part, server: psycopg.Connection[Any]) -> Evidence:
    """Let it all happen, and gather the evidence."""
    seed, provider_keys = part.wish.seed, part.provider_keys
    service = MailService(part.place, provider_keys=provider_keys, seed=seed)
    settings = consumer_settings(part.database_url, service.url, provider_keys=provider_keys)
    place = part.place.with_settings(settings)
    consumers = [Consumer(name, place) for name in CONSUMERS]
    visits = plan(part.wish.orders, seed)
    storm = Storm(part.engine, consumers, visits, kills=part.wish.kills, seed=seed)

    _weather(part, storm, service, consumers, place)
    service.stop()
    return Evidence(
        provider_keys=provider_keys,
        committed=_committed(part.engine),
        rolled_back=storm.progress.rolled_back,
        kills=sorted(kill for consumer in consumers for kill in consumer.kills),
        events=_events(service.record),
        held=_held(place, databases.clock_ahead_seconds(server, time.time())),
    )


def _weather(
    part: Part, storm: Storm, service: MailService, consumers: Sequence[Consumer], place: Place
) -> None:
    """The storm, and the calm after it, until nothing is left to do."""
    with screen.meter(
        provider_keys=part.provider_keys, orders=part.wish.orders, kills=part.wish.kills
    ) as meter:
        for consumer in consumers:
            consumer.start()
        storm.blow(lambda now: _show(meter, now, service))
        meter.say("no more kills: the rest meets faults alone")
        _wait_for_most(meter, storm.progress, service)
        meter.say("no more faults: what is open comes to an end")
        service.behave()
        drain(place, DRAIN_SECONDS_MAX, lambda: _show(meter, storm.progress, service))
        for consumer in consumers:
            consumer.stop()


def _show(meter: screen.Meter, now: Progress, service: MailService) -> None:
    meter.show(orders=now.committed, kills=now.kills, emails=service.count("accepted"))


def _wait_for_most(meter: screen.Meter, now: Progress, service: MailService) -> None:
    """Let most orders be tried before the faults stop, within reason."""
    deadline = time.monotonic() + FAULTY_SECONDS_MAX
    while service.count("requests") < MOST * now.committed and time.monotonic() < deadline:
        _show(meter, now, service)
        time.sleep(SHOW_SECONDS)


def _committed(engine: Engine) -> frozenset[str]:
    """The effect keys of the orders that are in the table."""
    with Session(engine) as session:
        return frozenset(effect_key(id_) for id_ in session.scalars(select(Order.id)))


def _events(record: Path) -> list[Event]:
    try:
        return list(read_record(record))
    except RecordError as error:
        raise DemoFailed(str(error)) from error


def _held(place: Place, ahead_seconds: float) -> list[Held]:
    """What the command line says of held effects, with times by our clock."""
    return [
        Held(
            effect_key=str(effect["effect_key"]),
            reason=str(effect.get("detail") or ""),
            begun_at=datetime.fromisoformat(str(effect["last_attempt_at"])).timestamp()
            - ahead_seconds,
        )
        for effect in held_effects(place)
    ]


def _traces(part: Part, evidence: Evidence) -> screen.Traces:
    """Where to look further; the order is one that took many requests, held if any is."""
    requests = Counter(event.key for event in evidence.events if isinstance(event, Received))
    held = {hold.effect_key for hold in evidence.held}
    keys = held or evidence.committed
    return screen.Traces(
        database_url=without_password(part.database_url),
        record=part.place.directory / RECORD,
        effect_key=max(sorted(keys), key=lambda key: requests[key]),
    )


def _fresh_directory(name: str) -> Path:
    """An empty folder beside the mail-service's own record; the last run's is removed.

    Raises:
        DemoFailed: it can't be made.
    """
    directory = default_record().parent / "demo" / name
    try:
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DemoFailed(
            f"can't make the folder {directory}: {error.strerror}; set XDG_DATA_HOME to one that "
            "can be written to"
        ) from error
    return directory
