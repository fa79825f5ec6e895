"""The life of a run: build, restore, steps, evaluations, checkpoints, an orderly end."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from engine.checkpoint import CheckpointError, CheckpointStore
from engine.clock import Clock
from engine.config import NOT_SCIENCE, RunConfig, recipe_fingerprint
from engine.distributed import Group
from engine.evaluation import evaluate
from engine.gpu_meters import GpuMeters
from engine.initialisation import load_initial_weights, scale_weights
from engine.loading import place_model
from engine.optimizer import build_optimizer_of, make_transforms
from engine.plan import Plan
from engine.precision import autocast, make_scaler
from engine.predictions import KEPT, predictions_file, write_predictions
from engine.profiling import StepProfile
from engine.progress import Progress
from engine.run_info import make_ending, run_info
from engine.snapshot import BackgroundWriter, gather_carries, map_tensors, on_host
from engine.step import NonFiniteLoss, Stepper, StepResult
from engine.telemetry import telemetry_row
from engine.tracking import Ending, RunAbout, Tracker, make_mirrors
from tasks.base import Batch, Predictions, Shard, Task
from tasks.seeding import derive_seed


@dataclass
class FitResult:
    """How a run ended: "finished", "preempted" or "diverged"."""

    status: str
    step: int
    message: str
    final: dict[str, float]
    best: dict[str, float]
    last: dict[str, float]  # of the last weights, where the final splits had the best ones
    wall_s: float
    skipped: int
    meters: dict[str, float]  # medians over the logged rows of this start


@dataclass
class TrainingState:
    """All that changes in a run besides weights, optimizer and scaler; saved with these."""

    step: int = 0
    position: int = 0  # of the data: steps, and fp16's skipped ones
    skipped: int = 0
    wall_s: float = 0.0
    window_total: float = 0.0  # of the loss since the last logged row, as of the checkpoint
    window_weight: float = 0.0
    evaluated: int = -1  # the last step whose evaluation is done
    best_step: int = -1
    best_value: float = math.nan

    def epoch(self, plan: Plan) -> float:
        return self.step / plan.steps_per_epoch


class Trainer:
    """Knows the Task contract, and no task."""

    def __init__(
        self,
        config: RunConfig,
        plan: Plan,
        task: Task,
        group: Group,
        folder: Path,
        run_id: str,
        about: RunAbout | None = None,
    ) -> None:
        self.config, self.plan, self.task, self.group = config, plan, task, group
        self.folder, self.run_id, self.about = folder, run_id, about or RunAbout()
        self.at = TrainingState()
        self.final: dict[str, float] = {}
        self.best: dict[str, float] = {}
        self.last: dict[str, float] = {}
        self.stop_requested = False
        self.device = group.device
        self.window = torch.zeros(2, dtype=torch.float64, device=self.device)  # loss: sum, weight
        self.module = self._build_model()
        self.optimizer = build_optimizer_of(config, self.module)
        self.scaler = make_scaler(config.hardware.precision, self.device)
        compiled = task.compile(self.module) if config.hardware.compile else self.module
        self.model = group.wrap(compiled)
        self.stepper = Stepper(
            task,
            self.model,
            self.optimizer,
            self.scaler,
            make_transforms(config.gradient),
            plan,
            group,
            config.seed,
            config.hardware.precision,
        )
        self.writer = BackgroundWriter()
        traced = config.hardware.profile if group.is_first else None
        self.profile = StepProfile(traced, folder / "profile", self.device)
        self.store = CheckpointStore(
            folder / "checkpoints",
            recipe_fingerprint(config, leave_out=()),
            {
                key: value
                for key, value in _flat(asdict(config)).items()
                if not any(key == name or key.startswith(f"{name}.") for name in NOT_SCIENCE)
            },
            config.checkpoint.keep,
            log=self.log,
        )

    def _build_model(self) -> nn.Module:
        torch.manual_seed(derive_seed("init", self.config.seed))
        module = self.task.build_model()
        scale_weights(module, self.config.init_gain)
        return place_model(module, self.config.hardware, self.device)

    def log(self, text: str) -> None:
        """Prints a line, on the first process."""
        if self.group.is_first:
            print(text, flush=True)

    def request_stop(self) -> None:
        """From a signal handler: all processes stop together at the end of a step."""
        self.stop_requested = True

    def fit(self) -> FitResult:
        """Trains to the end of the plan, or to the first reason to stop before."""
        if self.group.world > 2:
            self._settle_buckets()
        self._restore()
        config, plan = self.config, self.plan
        tracker = None
        if self.group.is_first:
            tracker = Tracker(
                self.folder,
                self.at.step,
                self.log,
                lambda: make_mirrors(
                    self.folder,
                    config.tracking,
                    run_info(config, plan, self.task, self.module, self.run_id, self.about),
                    self.log,
                ),
            )
        progress = Progress(
            plan.steps, self.at.step, plan.unit, config.experiment, stream=sys.__stderr__
        )
        ending = Ending("failed")
        try:
            with progress if self.group.is_first else _Silent():
                status, message = self._loop(tracker, progress)
            self.profile.close()
            self.writer.wait()
            result = self._result(status, message)
            if tracker is not None:
                self.about.keep_record(result)
                ending = make_ending(self, result)
        except BaseException as error:
            ending = Ending("failed", f"{type(error).__name__}: {error}")
            raise
        finally:
            if tracker is not None:
                tracker.finish(ending)
        return result

    def _result(self, status: str, message: str) -> FitResult:
        at = self.at
        return FitResult(
            status,
            at.step,
            message,
            self.final,
            self.best,
            self.last,
            round(at.wall_s, 3),
            at.skipped,
            self.clock.medians(),
        )

    def _loop(self, tracker: Tracker | None, progress: Progress) -> tuple[str, str]:
        at = self.at
        shard = Shard(self.group.rank, self.group.world)
        with closing(self.task.train_stream(shard, at.position)) as batches:  # type: ignore[type-var]
            try:
                return self._steps(batches, tracker, progress)
            except NonFiniteLoss as problem:
                lr = self.plan.schedule(at.step)
                return "diverged", f"{problem} at step {at.step}, lr {lr:g}"

    def _steps(
        self, batches: Iterator[Batch], tracker: Tracker | None, progress: Progress
    ) -> tuple[str, str]:
        at, plan = self.at, self.plan
        gpu = GpuMeters(self.task, self.device, self.group.world) if self.group.is_first else None
        clock = self.clock = Clock(at.wall_s, self.task, self.group.world, gpu)
        if self._evaluation_is_due() and not self._evaluate(tracker, clock):
            return self._preempted(tracker, clock)
        while at.step < plan.steps:
            logs = (at.step + 1) % plan.log_every == 0 or at.step + 1 == plan.steps
            saves = (at.step + 1) % plan.checkpoint_every == 0 or at.step + 1 == plan.steps
            measures = plan.optimizer_every > 0 and (at.step + 1) % plan.optimizer_every == 0
            with self.profile.watch(at.step):
                result = self.stepper.run(
                    at.step,
                    at.position,
                    batches,
                    want_norm=logs or saves,
                    stop=self.stop_requested,
                    measure=measures and tracker is not None,
                )
            clock.data_wait_s += self.stepper.take_data_wait()
            at.position += 1
            clock.units += result.units * self.group.world
            if result.skipped:
                at.skipped += 1
                if self.scaler.get_scale() < 1.0:
                    return "diverged", f"the fp16 loss scale fell below 1 at step {at.step}"
                continue
            at.step += 1
            self.window += result.tally[:2]
            if logs:
                self._log_row(tracker, progress, clock, result)
            if self._evaluation_is_due() and not self._evaluate(tracker, clock):
                return self._preempted(tracker, clock)
            saves = saves or at.best_step == at.step  # the best is kept, whenever it comes
            if saves:
                self._save(tracker, clock)
            if result.asked_to_stop and at.step < plan.steps:
                if not saves:
                    self._save(tracker, clock)
                return "preempted", f"stopped on request after step {at.step}, and saved"
        return "finished", f"all {plan.steps} steps done"

    def _preempted(self, tracker: Tracker | None, clock: Clock) -> tuple[str, str]:
        self._save(tracker, clock)
        return "preempted", f"stopped on request at step {self.at.step}, and saved"

    def _log_row(
        self, tracker: Tracker | None, progress: Progress, clock: Clock, result: StepResult
    ) -> None:
        at, plan = self.at, self.plan
        total, weight = self.window.tolist()
        self.window.zero_()
        loss = total / weight
        lr, meters = plan.schedule(at.step - 1), clock.meters()
        if tracker is None:
            return
        row = self._position_row(clock) | {"train/loss": loss, "train/lr": lr}
        if result.grad_norm is not None:
            row["train/grad_norm"] = result.grad_norm.item()
        if self.scaler.is_enabled():
            row["train/skipped"] = at.skipped
        found, by = result.statistics, self.config.tracking.optimizer_by
        tracker.log(row | meters | ({} if found is None else telemetry_row(found, by)))
        progress.update(at.step, loss=loss, lr=lr, units_per_s=meters["speed/units_per_s"])

    def _position_row(self, clock: Clock) -> dict[str, float | int]:
        at, plan = self.at, self.plan
        return {
            "step": at.step,
            "epoch": round(at.epoch(plan), 6),
            "units": at.step * plan.global_batch,
            "wall_s": round(clock.wall_s(), 3),
        }

    def _evaluation_is_due(self) -> bool:
        at, plan = self.at, self.plan
        due = at.step > 0 and (at.step % plan.eval_every == 0 or at.step == plan.steps)
        return due and at.evaluated != at.step

    def _evaluate(self, tracker: Tracker | None, clock: Clock) -> bool:
        """False after a stop signal to any process: the evaluation is then done after resuming."""
        at, headline = self.at, self.task.headline
        self.stepper.check_last()
        self.group.average_buffers(self.module)
        final = self.config.evaluation.final and at.step == self.plan.steps
        metrics = self._metrics_of(self.task.splits)
        tested = self._metrics_of(self.task.final_splits) if final else {}
        if metrics is None or tested is None:
            return False
        value = metrics[headline.name]
        better = value > at.best_value if headline.higher_is_better else value < at.best_value
        is_best = math.isnan(at.best_value) or better
        last: dict[str, float] = {}
        if tested and self.task.final_checkpoint == "best" and not is_best:
            last, tested = tested, self._test_best()
            if tested is None:
                return False
        at.evaluated = at.step
        self.final, self.last = metrics | tested, last
        if is_best:
            at.best_step, at.best_value, self.best = at.step, value, self.final
        if tracker is not None:
            tracker.log(self._position_row(clock) | self.final)
        clock.pause()
        return True

    def _metrics_of(self, splits: Iterable[str]) -> dict[str, float] | None:
        """By split and name; None after a stop signal to any process."""
        metrics: dict[str, float] = {}
        is_last = self.at.step == self.plan.steps
        for split in splits:
            kept = Predictions(KEPT) if is_last else None
            found = evaluate(
                self.task,
                self.module,
                split,
                self.group,
                self.config.hardware.precision,
                lambda: self.stop_requested,
                kept,
            )
            if found is None:
                return None
            if kept is not None and self.group.is_first:
                write_predictions(predictions_file(self.folder, split), kept.in_order())
            metrics |= {f"{split}/{name}": value for name, value in found.items()}
        return metrics

    def _test_best(self) -> dict[str, float] | None:
        """The final splits with the best checkpoint's weights; the last ones are then restored."""
        loaded = self.store.load_best()
        if loaded is None or loaded.step != self.at.best_step:
            found = "no checkpoint" if loaded is None else f"that of step {loaded.step}"
            raise CheckpointError(f"the best step was {self.at.best_step}, but best.pt is {found}")
        kept = {name: value.clone() for name, value in self.module.state_dict().items()}
        try:
            self.module.load_state_dict(loaded.state["model"])
            return self._metrics_of(self.task.final_splits)
        finally:
            self.module.load_state_dict(kept)

    def _save(self, tracker: Tracker | None, clock: Clock) -> None:
        """On a GPU the state is copied to the host, and written while the training continues."""
        self.stepper.check_last()
        # Statistics of batch norm are each process's own between evaluations: all are saved.
        own = {name: b.cpu() for name, b in self.module.named_buffers()}
        buffers = self.group.gather_to_first(own)
        carry = gather_carries(self.group, self.stepper.carry)
        self.at.wall_s = clock.wall_s()
        self.at.window_total, self.at.window_weight = self.window.tolist()
        if self.group.is_first:
            if tracker is not None:
                tracker.sync()
            state = {
                "at": asdict(self.at),
                "final": self.final,
                "best": self.best,
                "last": self.last,
                "model": self.module.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "scaler": self.scaler.state_dict(),
                "carry": carry,
                "buffers": buffers,
            }
            step, best = self.at.step, self.at.best_step == self.at.step
            if self.device.type == "cpu":
                self.store.save(step, state, best=best)
            else:
                copied = on_host(state)
                self.writer.start(lambda: self.store.save(step, copied, best=best))
        # Where the first process raises here the launcher ends the others, which wait.
        self.group.wait_for_all()
        clock.pause()

    def _restore(self) -> None:
        loaded = self.store.load_latest()
        steps = set(self.group.gather(None if loaded is None else loaded.step))
        if len(steps) > 1:
            raise CheckpointError(f"the processes see different checkpoints: steps {steps}")
        if loaded is None:
            if self.config.init_from is not None:
                load_initial_weights(self.module, self.config, self.folder, self.group.is_first)
            return
        state = loaded.state
        self.at = TrainingState(**state["at"])
        self.final, self.best = state["final"], state["best"]
        self.last = state.get("last", {})  # checkpoints of earlier versions have none
        self.module.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self._restore_buffers(state["buffers"])
        if self.scaler.is_enabled():
            self.scaler.load_state_dict(state["scaler"])
        window = [self.at.window_total, self.at.window_weight]
        self.window.copy_(torch.tensor(window, dtype=torch.float64))
        own = self.plan.accumulation
        first = self.group.rank * own
        carries = state["carry"][first : first + own]
        self.stepper.carry = map_tensors(lambda t: t.to(self.device), carries)
        self.log(f"resuming {self.run_id} at step {self.at.step} of {self.plan.steps}")

    def _restore_buffers(self, saved: list[dict[str, torch.Tensor]]) -> None:
        """This process's own, or the mean of all where the number of processes has changed."""
        for name, buffer in self.module.named_buffers():
            if len(saved) == self.group.world:
                buffer.copy_(saved[self.group.rank][name])
            elif buffer.is_floating_point():
                whole = torch.stack([part[name].double() for part in saved])
                buffer.copy_(whole.mean(dim=0))

    def _settle_buckets(self) -> None:
        """Lets DDP regroup its buckets before the first step.

        It does so after the first backward pass, which changes the order of summation: a resumed
        run of more than two processes would differ in the last bits from an undisturbed one.
        """
        kept = {name: value.clone() for name, value in self.module.state_dict().items()}
        batch = self.task.example_batch().to(self.device)
        for _ in range(2):
            with autocast(self.config.hardware.precision, self.device):
                out = self.task.loss(self.model, batch, None)
            (out.total * 0.0).backward()  # type: ignore[no-untyped-call]
        self.optimizer.zero_grad()
        self.module.load_state_dict(kept)


class _Silent:
    """Stands for the progress display on all processes but the first."""

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def _flat(nested: dict[str, Any], where: str = "") -> dict[str, Any]:
    """Dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in nested.items():
        name = f"{where}.{key}" if where else key
        flat |= _flat(value, name) if isinstance(value, dict) else {name: value}
    return flat
