"""The life of a run: build, restore, steps, evaluations, checkpoints, an orderly end."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from torch import nn

from engine.clock import Clock
from engine.config import RunConfig
from engine.distributed import Group
from engine.finite import FiniteState, NonFinite, cause_of
from engine.gpu_meters import GpuMeters
from engine.initialisation import scale_weights
from engine.loading import place_model
from engine.optimizer import build_optimizer_of, make_transforms
from engine.plan import Plan
from engine.precision import autocast, make_scaler
from engine.profiling import StepProfile
from engine.progress import Progress
from engine.provenance import describe_environment
from engine.run_evaluation import evaluate_run
from engine.run_info import make_ending, run_info
from engine.saving import open_store, restore_run, save_run
from engine.snapshot import BackgroundWriter
from engine.step import NonFiniteLoss, Stepper
from engine.tracking import Ending, RunAbout, Tracker, make_mirrors
from engine.training_state import FitResult, TrainingState
from tasks.base import Batch, DataProblem, Shard, Task
from tasks.seeding import derive_seed


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
        self.store = open_store(config, folder, self.log)
        self.environment: dict[str, Any] = {}  # of the first process
        self.finite = FiniteState(self)

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
        saved_rows = restore_run(self)
        self.finite = FiniteState(self)
        config, plan = self.config, self.plan
        tracker = None
        if self.group.is_first:
            self.environment = describe_environment()
            tracker = Tracker(
                self.folder,
                self.at.step,
                self.log,
                lambda: make_mirrors(
                    self.folder,
                    config.tracking,
                    run_info(config, plan, self.task, self.module, self.run_id, self.about),
                    self.at.step,
                    self.log,
                ),
                saved_rows,
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
        try:
            with closing(self.task.train_stream(shard, at.position)) as batches:  # type: ignore[type-var]
                return self._steps(batches, tracker, progress)
        except NonFiniteLoss as problem:
            cause = self._cause_outside_data(problem)
            return "diverged", f"{problem}, lr {self.plan.schedule(problem.step):g}: {cause}"
        except NonFinite as problem:
            return "diverged", f"after step {at.step} {problem}"

    def _cause_outside_data(self, problem: NonFiniteLoss) -> str:
        """Which tensor made a loss NaN or infinite; DataProblem if it is an input."""
        cause = cause_of(problem, self)
        if cause.in_data:
            raise DataProblem(f"{problem}: {cause.text}") from None
        return cause.text

    def _steps(
        self, batches: Iterator[Batch], tracker: Tracker | None, progress: Progress
    ) -> tuple[str, str]:
        at, plan = self.at, self.plan
        gpu = GpuMeters(self.task, self.device, self.group.world) if self.group.is_first else None
        clock = self.clock = Clock(at.wall_s, self.task, self.group.world, gpu)
        if self._evaluation_is_due():  # of a run that was stopped in the middle of it
            if not evaluate_run(self, tracker, clock):
                return self._preempted(tracker, clock)
            save_run(self, tracker, clock)
        while at.step < plan.steps:
            logs = (at.step + 1) % plan.log_every == 0 or at.step + 1 == plan.steps
            saves = (at.step + 1) % plan.checkpoint_every == 0 or at.step + 1 == plan.steps
            with self.profile.watch(at.step):
                result = self.stepper.run(
                    at.step,
                    at.position,
                    batches,
                    want_norm=logs or saves,
                    stop=self.stop_requested,
                )
            clock.data_wait_s += self.stepper.take_data_wait()
            at.position += 1
            clock.units += result.units * self.group.world
            if result.skipped:
                if not math.isfinite(loss := result.tally[0].item()):  # fp16 waits anyway
                    self._cause_outside_data(NonFiniteLoss(loss, at.step, at.position - 1))
                at.skipped += 1
                if self.scaler.get_scale() < 1.0:
                    return "diverged", f"the fp16 loss scale fell below 1 at step {at.step}"
                continue
            at.step += 1
            self.window += result.tally[:2]
            if logs:
                self._log_row(tracker, progress, clock, result.grad_norm)
            if self._evaluation_is_due() and not evaluate_run(self, tracker, clock):
                return self._preempted(tracker, clock)
            saves = saves or at.best_step == at.step  # the best is kept, whenever it comes
            if saves:
                save_run(self, tracker, clock)
            if result.asked_to_stop and at.step < plan.steps:
                if not saves:
                    save_run(self, tracker, clock)
                return "preempted", f"stopped on request after step {at.step}, and saved"
        return "finished", f"all {plan.steps} steps done"

    def _preempted(self, tracker: Tracker | None, clock: Clock) -> tuple[str, str]:
        save_run(self, tracker, clock)
        return "preempted", f"stopped on request at step {self.at.step}, and saved"

    def _log_row(
        self, tracker: Tracker | None, progress: Progress, clock: Clock, norm: torch.Tensor | None
    ) -> None:
        at, plan = self.at, self.plan
        self.finite.check()
        total, weight = self.window.tolist()
        self.window.zero_()
        loss = total / weight
        lr, meters = plan.schedule(at.step - 1), clock.meters()
        if tracker is None:
            return
        row = self.position_row(clock) | {"train/loss": loss, "train/lr": lr}
        if norm is not None:
            row["train/grad_norm"] = norm.item()
        if self.scaler.is_enabled():
            row["train/skipped"] = at.skipped
        tracker.log(row | meters)
        progress.update(at.step, loss=loss, lr=lr, units_per_s=meters["speed/units_per_s"])

    def position_row(self, clock: Clock) -> dict[str, float | int]:
        """What every row of metrics.jsonl begins with."""
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
