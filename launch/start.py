"""A run on this node, from its configuration to its exit status."""

from __future__ import annotations

import sys

from engine.config import ConfigProblem, RunConfig
from launch.compose import Origin
from launch.entry import STOPPED_EARLY
from launch.exit_status import BAD_INPUT, FAILED
from launch.rendezvous import Node, NodeLost, Rendezvous, RendezvousError
from launch.run_spec import RunSpec, complete_run_spec, describe
from launch.stop_signals import StopSignals
from launch.supervise import run
from tasks.base import DataProblem


def launch(config: RunConfig, origin: Origin, node: Node, *, patient: bool = False) -> int:
    """This node's part of a run; the exit status is the same on every node."""
    try:
        with (
            StopSignals(patient=patient) as stop_signals,
            Rendezvous(node, config.hardware.timeout_s) as rendezvous,
        ):
            spec = _complete_in_turn(config, origin, rendezvous)
            if spec is None:
                return BAD_INPUT
            if node.is_first:
                print(describe(spec), flush=True)
            return run(spec, rendezvous, stop_signals)
    except RendezvousError as problem:
        print(problem, file=sys.stderr)
        return BAD_INPUT
    except NodeLost as lost:
        print(f"{node}: {lost}", file=sys.stderr)
        return lost.status or FAILED
    except SystemExit as stopped:  # a stop signal before the workers were started
        print(STOPPED_EARLY, flush=True)
        return int(stopped.code or 0)


def _complete_in_turn(config: RunConfig, origin: Origin, rendezvous: Rendezvous) -> RunSpec | None:
    """On the first node first, so that shared data are downloaded and made once.

    None on all nodes if one of them has a problem.
    """
    if not rendezvous.is_first and rendezvous.gather("")[0]:
        return None
    spec, problem = None, ""
    try:
        spec = complete_run_spec(config, origin)
    except (ConfigProblem, DataProblem) as found:
        problem = str(found)
        where = f"{rendezvous.node}: " if rendezvous.node.count > 1 else ""
        print(f"{where}{problem}", file=sys.stderr)
    if rendezvous.is_first and rendezvous.gather(problem)[0]:
        return None
    return None if any(rendezvous.gather(problem)) else spec
