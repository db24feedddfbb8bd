"""The waits of the library that are no settings, as short as a test wants them.

They are made for a network's pace: how long a failure waits for another job's answer, how soon an
outage is probed. What is true with them must be true without; they only cost a test its time.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from outbox.evidence import Evidence

if TYPE_CHECKING:
    from collections.abc import Mapping

WAITS: Mapping[str, object] = {
    "outbox.consumer.Evidence": partial(Evidence, 0.05),
    "outbox.verdict.ELSEWHERE_SECONDS": 0.05,
    "outbox.claim._PROMOTION_SHARE": 1,
    "outbox.claim._SCAN_SHARE": 1,
    "outbox.lane.PROBE_SECONDS_FIRST": 0.05,
    "outbox.lane.PAUSE_PROBE_SECONDS_FIRST": 0.05,
}
