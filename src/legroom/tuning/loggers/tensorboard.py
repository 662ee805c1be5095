"""Writes a study to TensorBoard, with one run per trial. Each run has metrics, memory, and the configuration in the
HPARAMS tab."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from legroom.errors import MissingExtra
from legroom.tuning.loggers.common import Logger, memory_figures, plain_config
from legroom.tuning.loggers.packages import summary_writer
from legroom.tuning.trial.records import TrialRecord

if TYPE_CHECKING:
    from torch.utils.tensorboard.writer import SummaryWriter


class TensorBoardLog(Logger):
    """Writes to `folder`, which is the argument of `tensorboard --logdir`."""

    name = "The TensorBoard log"

    def __init__(self, folder: str | Path) -> None:
        super().__init__()
        try:
            import torch.utils.tensorboard  # noqa: F401  (fails early if it is missing)
        except ImportError:
            raise MissingExtra("TensorBoard", "log") from None
        self._folder = Path(folder)
        self._writers: dict[int, SummaryWriter] = {}

    def write_report(self, record: TrialRecord, index: int) -> None:
        report = record.reports[index]
        writer = self._writer(record)
        for name, value in {**report.metrics, **memory_figures(record)}.items():
            writer.add_scalar(name, value, report.step)
        writer.flush()

    def end(self, record: TrialRecord) -> None:
        from torch.utils.tensorboard.summary import hparams

        writer: Any = self._writer(record)  # these functions of torch are untyped
        summaries: Any = hparams
        final = record.reports[-1].metrics if record.reports else {}
        for summary in summaries(plain_config(record), dict.fromkeys(final, 0.0)):
            # `add_hparams` would create a second run for the trial.
            writer._get_file_writer().add_summary(summary)
        writer.add_text("state", f"{record.state}: {record.reason}" if record.reason else str(record.state))
        self._writers.pop(record.number).close()

    def close(self) -> None:
        while self._writers:
            self._writers.popitem()[1].close()

    def _writer(self, record: TrialRecord) -> "SummaryWriter":
        if record.number not in self._writers:
            self._writers[record.number] = summary_writer(self._folder / f"trial_{record.number:04d}")
        return self._writers[record.number]
