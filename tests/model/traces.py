"""Random histories of the model, each from its seed."""

from __future__ import annotations

from random import Random

from tests.model.spec import steps
from tests.model.state import Action, Budget, State, World

#: A process that claims anew what a failover has lost can't tell its two claims apart; that is one
#: more reason why nothing is promised of a database that loses commits.
BUDGETS = {
    True: Budget(faults=6, ticks=3, people=4),
    False: Budget(faults=6, ticks=3, people=4, lost_commits=1),
}
WORLDS = tuple(
    World(
        keys,
        max_attempts=attempts,
        replays=replays,
        repeat=repeat,
        one_process=one_process,
        expires=True,
        stops=True,
        idle=True,
        budget=BUDGETS[one_process],
    )
    for keys in ((0, 0), (0, 1), (0,), (0, 0, 1))
    for replays, repeat in ((True, False), (False, False), (False, True))
    for attempts, one_process in ((2, True), (3, False))
)
STEPS = 30
#: The kind of all steps that change nothing: heartbeats, and decisions that come too late.
NOTHING = ""
#: How likely a kind of step is drawn, against 1 for a fault or a person's decision.
WEIGHTS = {
    **dict.fromkeys(("claim", "begin", "read", "reopen", "leave", "arrive"), 12),
    **dict.fromkeys(("deliver", "lose", "settle", "promote", "claim_crashed"), 8),
    **dict.fromkeys(("release", "leave_after_stop", "check_fails", "forget", "unreached"), 6),
    **dict.fromkeys(("lapse", "crash", "refuse", "throttle", "deliver_unreadable"), 2),
    **dict.fromkeys(("cancel", "expire", "claim_lost", "claim_crashed_lost"), 0.5),
    "tick": 0.5,
    NOTHING: 1,
}


def random_trace(seed: int, length: int = STEPS) -> tuple[World, list[tuple[Action, State]]]:
    """Return a world and a way through it: first a kind of step is drawn, then one of the kind."""
    dice = Random(seed)
    w = WORLDS[seed % len(WORLDS)]
    trace: list[tuple[Action, State]] = [((), w.start())]
    for _ in range(length):
        kinds: dict[str, list[tuple[Action, State]]] = {}
        for action, after in steps(w, trace[-1][1]):
            kind = str(action[0]) if after != trace[-1][1] else NOTHING
            kinds.setdefault(kind, []).append((action, after))
        names = sorted(kinds)
        (name,) = dice.choices(names, [WEIGHTS.get(name, 1) for name in names])
        trace.append(dice.choice(kinds[name]))
    return w, trace
