"""The evaluations along a run and at its end: which is the best, and which weights are tested."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from engine.checkpoint import CheckpointError
from engine.clock import Clock
from engine.evaluation import evaluate
from engine.finite import NonFinite
from engine.predictions import KEPT, predictions_file, write_predictions
from engine.tracking import Tracker
from tasks.base import Predictions

if TYPE_CHECKING:
    from engine.trainer import Trainer


def evaluate_run(trainer: Trainer, tracker: Tracker | None, clock: Clock) -> bool:
    """False after a stop signal to any process: the evaluation is then done after resuming."""
    at, headline = trainer.at, trainer.task.headline
    trainer.stepper.check_last()
    trainer.finite.check()
    trainer.group.average_buffers(trainer.module)
    final = trainer.config.evaluation.final and at.step == trainer.plan.steps
    metrics = _metrics_of(trainer, trainer.task.splits)
    tested = _metrics_of(trainer, trainer.task.final_splits) if final else {}
    if metrics is None or tested is None:
        return False
    value = metrics[headline.name]
    if math.isnan(value):
        raise NonFinite(f"{headline.name} is {value}")
    better = value > at.best_value if headline.higher_is_better else value < at.best_value
    is_best = math.isnan(at.best_value) or better
    last: dict[str, float] = {}
    if tested and trainer.task.final_checkpoint == "best" and not is_best:
        last, tested = tested, _test_best(trainer)
        if tested is None:
            return False
    at.evaluated = at.step
    trainer.final, trainer.last = metrics | tested, last
    if is_best:
        at.best_step, at.best_value, trainer.best = at.step, value, trainer.final
    if tracker is not None:
        tracker.log(trainer.position_row(clock) | trainer.final)
    clock.pause()
    return True


def _metrics_of(trainer: Trainer, splits: Iterable[str]) -> dict[str, float] | None:
    """By split and name; None after a stop signal to any process."""
    metrics: dict[str, float] = {}
    is_last = trainer.at.step == trainer.plan.steps
    for split in splits:
        kept = Predictions(KEPT) if is_last else None
        found = evaluate(
            trainer.task,
            trainer.module,
            split,
            trainer.group,
            trainer.config.hardware.precision,
            lambda: trainer.stop_requested,
            kept,
        )
        if found is None:
            return None
        if kept is not None and trainer.group.is_first:
            write_predictions(predictions_file(trainer.folder, split), kept.in_order())
        metrics |= {f"{split}/{name}": value for name, value in found.items()}
    return metrics


def _test_best(trainer: Trainer) -> dict[str, float] | None:
    """The final splits with the best checkpoint's weights; the last ones are then restored."""
    loaded = trainer.store.load_best()
    best_step, module = trainer.at.best_step, trainer.module
    if loaded is None or loaded.step != best_step:
        found = "no checkpoint" if loaded is None else f"that of step {loaded.step}"
        raise CheckpointError(f"the best step was {best_step}, but best.pt is {found}")
    kept = {name: value.clone() for name, value in module.state_dict().items()}
    try:
        module.load_state_dict(loaded.state["model"])
        return _metrics_of(trainer, trainer.task.final_splits)
    finally:
        module.load_state_dict(kept)
