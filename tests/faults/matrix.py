"""All faults: what is attacked, how often, what surviving means; tried one after another."""

from __future__ import annotations

import platform
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from engine.provenance import describe_environment
from tests.faults.site import Attempt, Site, Skipped, Workshop

Attack = Callable[[Site, int], None]
SEED = 1


@dataclass(frozen=True)
class Fault:
    """A kind of attack; `attack` makes about so many attempts on a site."""

    name: str
    what: str
    promise: str
    attack: Attack
    tries: int
    quick: int
    limit_s: float = 180.0  # of an attempt


@dataclass
class Outcome:
    """What a fault has led to."""

    fault: Fault
    attempts: list[Attempt] = field(default_factory=list)
    skipped: str = ""
    seconds: float = 0.0

    @property
    def tried(self) -> int:
        return len(self.attempts)

    @property
    def survived(self) -> int:
        return sum(not attempt.problem for attempt in self.attempts)

    @property
    def problems(self) -> list[str]:
        return [f"{a.note}: {a.problem}" for a in self.attempts if a.problem]


FAULTS: dict[str, Fault] = {}


def fault(
    what: str, promise: str, *, tries: int, quick: int, limit_s: float = 180.0
) -> Callable[[Attack], Attack]:
    """Enters an attack in the matrix, under its function's name."""

    def enter(attack: Attack) -> Attack:
        name = attack.__name__.replace("_", "-")
        FAULTS[name] = Fault(name, what, promise, attack, tries, quick, limit_s)
        return attack

    return enter


def try_fault(fault: Fault, workshop: Workshop, tries: int, seed: int) -> Outcome:
    """All attempts of one fault; whatever happens, nothing of it is left."""
    outcome, began = Outcome(fault), time.monotonic()
    site = Site(fault.name, workshop, seed, fault.limit_s)
    try:
        fault.attack(site, tries)
    except Skipped as reason:
        outcome.skipped = str(reason)
    except Exception as problem:  # of the attack itself: what was to be tried was not
        site.attempts.append(Attempt("the attack", f"{type(problem).__name__}: {problem}"))
    finally:
        site.close()
    outcome.attempts, outcome.seconds = site.attempts, time.monotonic() - began
    return outcome


def without_places(text: str) -> str:
    """A record names neither a folder nor the host of the machine that it was made on."""
    return re.sub(r"(?<![\w.])/(?:[^\s/:'\"]+/)+", "", text).replace(platform.node(), "the host")


def source_of_figures(seed: int) -> dict[str, Any]:
    """Commit and machine; asked before the first figures are written, which change the checkout."""
    environment = describe_environment()
    return {
        "commit": environment["commit"],
        "dirty": environment["dirty"],
        "date": datetime.now(UTC).date().isoformat(),
        "seed": seed,
        "machine": environment["hardware"],
        "versions": environment["versions"],
    }


def record_of(outcomes: Iterable[Outcome], source: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What results/bench/faults.json keeps of each fault."""
    return {
        one.fault.name: {
            "what": one.fault.what,
            "promise": one.fault.promise,
            "tried": one.tried,
            "survived": one.survived,
            "seconds": round(one.seconds, 1),
            "skipped": without_places(one.skipped),
            "problems": [without_places(problem) for problem in one.problems],
            **source,
        }
        for one in outcomes
    }
