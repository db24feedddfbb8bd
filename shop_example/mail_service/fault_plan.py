"""Who meets which fault: rates, targets and the dice.

Pure: a request's number, key and turn go in, a fault or None comes out. The roll of request
number n depends on the seed and n alone, so a run can be repeated, restarts included.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from shop_example.mail_service.faults import FAULTS, Fault, FaultError, fault_named

ANY_KEY = "*"
DRIP_SECONDS = 0.5
LATE_SECONDS = 5.0


def rates_from_text(text: str) -> dict[str, float]:
    """Rates as the command line words them: ``drop_after_accept=0.1,503=0.05``."""
    rates: dict[str, object] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, rate = part.partition("=")
        try:
            rates[name.strip()] = float(rate)
        except ValueError:
            raise FaultError(f"{part!r}: write it as NAME=RATE, a rate from 0 to 1") from None
    return checked_rates(rates)


def checked_rates(rates: Mapping[str, object]) -> dict[str, float]:
    """Rates by full name, each from 0 to 1 and not above 1 together. Raises FaultError."""
    checked: dict[str, float] = {}
    for name, rate in rates.items():
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate <= 1:
            raise FaultError(f"the rate of {name} must be a number from 0 to 1, not {rate!r}")
        checked[fault_named(name).name] = float(rate)
    if sum(checked.values()) > 1 + 1e-9:
        raise FaultError(
            f"the rates add up to {sum(checked.values()):g}, but one request meets one fault: "
            "lower them to 1 together"
        )
    return checked


@dataclass(frozen=True, slots=True)
class Target:
    """A fault for the next ``times`` requests of one key (``*``: any), from its nth on."""

    key: str
    fault: str
    times: int = 1
    nth: int = 1

    @classmethod
    def of(cls, values: object) -> Target:
        """A target from its JSON object; raises FaultError naming the field."""
        if not isinstance(values, dict) or not {"key", "fault"} <= values.keys():
            raise FaultError('targeted: each needs at least {"key": ..., "fault": ...}')
        unknown = values.keys() - {"key", "fault", "times", "nth"}
        if unknown:
            raise FaultError(f"targeted: there is no field {', '.join(sorted(unknown))}")
        if not isinstance(values["key"], str) or not isinstance(values["fault"], str):
            raise FaultError("targeted: key and fault must be strings")
        times, nth = values.get("times", 1), values.get("nth", 1)
        if not all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in (times, nth)):
            raise FaultError("targeted: times and nth must be whole numbers from 1 on")
        return cls(values["key"], fault_named(values["fault"]).name, times, nth)

    def as_values(self) -> dict[str, Any]:
        """The JSON object that ``of`` reads."""
        return {"key": self.key, "fault": self.fault, "times": self.times, "nth": self.nth}

    def concerns(self, key: str | None, turn: int) -> bool:
        """Whether the ``turn``-th request of ``key`` is one for this target."""
        return self.key in (ANY_KEY, key) and turn >= self.nth


class FaultPlan:
    """Which request meets which fault: targets first, then one roll of the dice."""

    def __init__(self, rates: Mapping[str, float], seed: int) -> None:
        self.rates = dict(rates)
        self.seed = seed
        self.drip_seconds = DRIP_SECONDS
        self.late_seconds = LATE_SECONDS
        self._targets: list[Target] = []

    @property
    def targeted(self) -> tuple[Target, ...]:
        """The targets that still wait for their requests."""
        return tuple(self._targets)

    def set(self, rates: Mapping[str, float], targets: Iterable[Target]) -> None:
        """Replaces all rates and targets."""
        self.rates = dict(rates)
        self._targets = list(targets)

    def choose(self, seq: int, key: str | None, turn: int) -> Fault | None:
        """The fault for request number ``seq``, which is the ``turn``-th of its key."""
        for index, target in enumerate(self._targets):
            if target.concerns(key, turn):
                self._use_up(index, target)
                return FAULTS[target.fault]
        if not self.rates:
            return None
        roll = roll_of(self.seed, seq)
        for name, rate in self.rates.items():
            if roll < rate:
                return FAULTS[name]
            roll -= rate
        return None

    def _use_up(self, index: int, target: Target) -> None:
        if target.times == 1:
            del self._targets[index]
        else:
            self._targets[index] = replace(target, times=target.times - 1)


def roll_of(seed: int, seq: int) -> float:
    """A number from 0 (included) to 1, the same for the same seed and request number."""
    digest = hashlib.blake2b(b"%d:%d" % (seed, seq), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) / 2**53
