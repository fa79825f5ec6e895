"""The rows of metrics.jsonl as TensorBoard event files in the run's folder, `tensorboard/`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine.rows import ROWS_FILE, read_rows
from engine.tracking import Ending, Log, Row, RunInfo

AXES = ("step", "epoch", "units", "wall_s")  # of a row; what is not drawn against itself


class TensorBoardMirror:
    """Every start writes an event file of its own, which repeats all rows.

    Event files of earlier starts are removed first, so that no step is drawn twice.
    """

    def __init__(self, folder: Path, info: RunInfo, log: Log) -> None:
        self._log = log
        self._writer: Any = None
        place = folder / "tensorboard"
        try:
            from torch.utils.tensorboard import SummaryWriter

            for old in place.glob("events.out.tfevents.*"):
                old.unlink()
            self._writer = SummaryWriter(str(place))
            for row in read_rows(folder / ROWS_FILE):
                self.log(row)
            log(f"TensorBoard: tensorboard --logdir {place}")
        except Exception as error:
            self._give_up(error)

    def log(self, row: Row) -> None:
        """Every number of a row, at its step."""
        if self._writer is None:
            return
        try:
            for name, value in row.items():
                if name not in AXES:
                    self._writer.add_scalar(name, value, int(row["step"]))
        except Exception as error:
            self._give_up(error)

    def finish(self, ending: Ending) -> None:
        """Writes the outcome and closes the file."""
        if self._writer is None:
            return
        try:
            self._writer.add_text("outcome", f"{ending.kind}: {ending.message}")
            self._writer.close()
        except Exception as error:
            self._give_up(error)
        self._writer = None

    def _give_up(self, error: Exception) -> None:
        self._writer = None
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        self._log(f"TensorBoard: continuing without it ({reason}); {ROWS_FILE} has every row")
