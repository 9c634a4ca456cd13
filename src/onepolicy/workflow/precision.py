"""Was the trainer also read in the rollout side's precision, and what does that explain?"""

from __future__ import annotations

from onepolicy.errors import RunError, UsageError
from onepolicy.numerics.measurement import Measurement
from onepolicy.numerics.precision import precision_alone
from onepolicy.records.reading import EngineInfo
from onepolicy.records.run import Run
from onepolicy.records.verdict import Verdict
from onepolicy.workflow.measure import measure
from onepolicy.workflow.progress import Silent


def explained_by_precision(
    run: Run, readings: tuple[str, str], measured: Measurement, verdicts: list[Verdict]
) -> list[Verdict]:
    """The verdicts, and whether precision alone accounts for a failed mean KL, if there is a reading that can tell."""
    other = _same_weights_in_rollout_precision(run, readings)
    if other is None:
        return verdicts
    alone = measure(run, run, other, readings[1], progress=Silent())
    if alone.valid != measured.valid:
        return verdicts  # a reading of other tokens explains nothing about these
    precision = precision_alone(
        measured,
        alone,
        measure(run, run, readings[0], other, progress=Silent()),
        dtype=run.reading_info(readings[1]).engine.dtype,
        other_dtype=run.reading_info(other).engine.dtype,
    )
    explained = [
        v.model_copy(update={"message": f"{v.message} {precision.message.capitalize()}"}) if v.check == "mean_kl" else v
        for v in verdicts
    ]
    return [*explained, precision]


def _same_weights_in_rollout_precision(run: Run, readings: tuple[str, str]) -> str | None:
    rollout, trainer = (run.reading_info(name).engine for name in readings)
    if rollout.dtype == trainer.dtype:
        return None
    for name in run.reading_names():
        try:
            engine = run.reading_info(name).engine
        except (RunError, UsageError):
            continue  # a folder that is no reading of this run, such as a copy: it is not asked about
        if name not in readings and _is_trainer_in(engine, trainer, rollout.dtype):
            return name
    return None


def _is_trainer_in(engine: EngineInfo, trainer: EngineInfo, dtype: str) -> bool:
    same = (engine.name, engine.model, engine.weights_hash) == (
        trainer.name,
        trainer.model,
        trainer.weights_hash,
    )
    return same and engine.dtype == dtype
