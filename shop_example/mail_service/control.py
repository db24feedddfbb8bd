"""The control plane under ``/_control``: what a test or a demo may see and change while it runs.

Only from this machine, on the same port; see docs/mail-service.md.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from shop_example.mail_service.answer import NOT_FOUND, Answer, error, method_not_allowed, success
from shop_example.mail_service.events import ClockMoved, Cut, Decided, Received
from shop_example.mail_service.exchange import Request
from shop_example.mail_service.fault_plan import (
    DRIP_SECONDS,
    LATE_SECONDS,
    Target,
    checked_rates,
)
from shop_example.mail_service.faults import FaultError
from shop_example.mail_service.record import read_record
from shop_example.mail_service.service import MailService

PREFIX = "/_control"
_LIMIT = 1e12

FORBIDDEN = error(403, "forbidden", "The control plane answers on loopback only.")


class WrongControl(Exception):
    """A control request that can't be carried out; its text names the field."""


class ControlPlane:
    """Answers control requests; every change of clock or faults goes to the record as well."""

    def __init__(self, service: MailService) -> None:
        self._service = service
        self._book = service.book

    async def answer(self, request: Request) -> Answer:
        """Carries out one control request."""
        try:
            match request.method, request.path.removeprefix(PREFIX):
                case "GET", "/state":
                    return success(self._state())
                case "GET", "/faults":
                    return success(self._plan())
                case "PUT", "/faults":
                    return await self._set_faults(_object(request.body))
                case "POST", "/clock":
                    return await self._move_clock(_object(request.body))
                case "GET", "/record":
                    return success(await self._events_of(request.query))
                case _, "/state" | "/record":
                    return method_not_allowed(b"GET")
                case _, "/faults":
                    return method_not_allowed(b"GET, PUT")
                case _, "/clock":
                    return method_not_allowed(b"POST")
                case _:
                    return NOT_FOUND
        except (WrongControl, FaultError) as wrong:
            return error(400, "validation_error", str(wrong))

    def _state(self) -> dict[str, Any]:
        counts, clock = self._book.counts, self._book.clock
        names = ("starts", "requests", "accepted", "replayed", "refused", "cut", "malformed")
        return {
            **{name: counts[name] for name in names},
            "in_progress": self._book.in_progress,
            "keys": self._book.keys.count(clock.now()),
            "faults": dict(self._book.faults),
            "clock_offset_seconds": clock.offset_seconds,
            "keeps_keys": self._service.settings.keeps_keys,
            "key_window_seconds": self._service.settings.key_window_seconds,
            "record": str(self._book.journal.path),
        }

    def _plan(self) -> dict[str, Any]:
        plan = self._service.faults
        return {
            "rates": plan.rates,
            "targeted": [target.as_values() for target in plan.targeted],
            "seed": plan.seed,
            "drip_seconds": plan.drip_seconds,
            "late_seconds": plan.late_seconds,
        }

    async def _set_faults(self, values: dict[str, Any]) -> Answer:
        """Replaces all rates and targets; what isn't named is as in an honest service."""
        known = {"rates", "targeted", "seed", "drip_seconds", "late_seconds"}
        if values.keys() - known:
            raise WrongControl(f"faults: there is no field {', '.join(values.keys() - known)}")
        rates, targeted = values.get("rates", {}), values.get("targeted", [])
        if not isinstance(rates, dict) or not isinstance(targeted, list):
            raise WrongControl("faults: rates must be an object and targeted a list")
        plan = self._service.faults
        checked, targets = checked_rates(rates), [Target.of(target) for target in targeted]
        seed = _whole(values, "seed", plan.seed)
        drip = _seconds(values, "drip_seconds", DRIP_SECONDS)
        late = _seconds(values, "late_seconds", LATE_SECONDS)
        plan.set(checked, targets)
        plan.seed, plan.drip_seconds, plan.late_seconds = seed, drip, late
        self._service.note_faults()
        await self._book.synced()
        return success(self._plan())

    async def _move_clock(self, values: dict[str, Any]) -> Answer:
        if values.keys() != {"advance_seconds"}:
            raise WrongControl('clock: give {"advance_seconds": NUMBER}')
        offset = self._book.clock.offset_seconds + _number(values, "advance_seconds")
        self._book.note(ClockMoved(time.time(), offset))
        await self._book.synced()
        return success({"clock_offset_seconds": offset})

    async def _events_of(self, query: str) -> dict[str, Any]:
        keys = parse_qs(query, keep_blank_values=True).get("key", [])
        if len(keys) != 1:
            raise WrongControl("record: name one key, as in /_control/record?key=email-order-7")
        await self._book.synced()
        events = await asyncio.to_thread(_events_of_key, self._book.journal.path, keys[0])
        return {"key": keys[0], "events": events}


def _events_of_key(path: Path, key: str) -> list[dict[str, Any]]:
    return [
        {"event": event.event, **asdict(event)}
        for event in read_record(path)
        if isinstance(event, Received | Decided | Cut) and event.key == key
    ]


def _object(body: bytes) -> dict[str, Any]:
    try:
        values = json.loads(body)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise WrongControl("the request body must be a JSON object")
    return values


def _number(values: dict[str, Any], name: str, default: float = 0.0) -> float:
    value = values.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _LIMIT:
        raise WrongControl(f"{name} must be a number below {_LIMIT:g}, not {value!r}")
    return float(value)


def _seconds(values: dict[str, Any], name: str, default: float) -> float:
    seconds = _number(values, name, default)
    if seconds < 0:
        raise WrongControl(f"{name} must not be negative")
    return seconds


def _whole(values: dict[str, Any], name: str, default: int) -> int:
    value = values.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int):
        raise WrongControl(f"{name} must be a whole number, not {value!r}")
    return value
