"""One run for the whole lineage: by the draft's number, what was predicted beside what was served."""

from collections.abc import Iterable, Mapping, Sequence

from ....buffer.board.version import PREDICTED_SCORE, PREDICTED_STANDARD_ERROR
from ....policies.readings.ratio_sums import Z_95
from ....policies.readings.served_drafts import ServedDraft
from ..run_record import Point
from .figures import Calibrated, calibration_figure, lineage_figure
from .model_store import ModelStore
from .runs import is_writable, log_points, run_or_none

#: Marks the run, which is no draft's.
LINEAGE_TAG = "paceline.lineage"
CALIBRATION_PICTURE = "calibration.png"
LINEAGE_PICTURE = "lineage.png"

#: Accept lengths; short, for MLflow cuts the titles of its charts.
PREDICTED = "predicted"
SERVED = "served"
#: When the draft had served some rounds (served_figures.py: FIRST_ROUNDS), though more would come.
SERVED_FIRST = "served_first_rounds"
ERROR = "served_minus_predicted"


def lineage_run(store: ModelStore, started_at: float) -> str:
    """Id of the run, made where it is absent: it began at `started_at`, unix seconds, and goes on."""
    found = store.client.search_runs([store.experiment], f"tags.`{LINEAGE_TAG}` = 'true'", max_results=1)
    if found:
        return str(found[0].info.run_id)
    note = "Accept lengths. Step: number of the draft. Time: when it went live."
    tags = {LINEAGE_TAG: "true", "mlflow.note.content": note}
    run: str = store.client.create_run(store.experiment, int(started_at * 1000), tags, "lineage").info.run_id
    return run


def log_lineage(store: ModelStore, points: Sequence[Point], shown: Iterable[tuple[int, str]]) -> None:
    """Log `points`, at least one, and draw them, for the runs `shown` too, (draft, run id) each."""
    run = lineage_run(store, min(point.at for point in points))
    log_points(store, run, points)
    log_calibration(store, run, shown)


def predicted_points(number: int, scores: Mapping[str, float], live_at: float) -> list[Point]:
    """Return what was predicted of a draft that went live at `live_at`, with the 95 % interval that its requests allow.

    Empty where it measured nothing; without the interval where it measured few requests.
    """
    predicted = scores.get(PREDICTED_SCORE)
    error = scores.get(PREDICTED_STANDARD_ERROR)
    if predicted is None:
        return []
    figures = {PREDICTED: predicted}
    if error is not None:
        figures |= {
            f"{PREDICTED}_low": max(predicted - Z_95 * error, 1.0),
            f"{PREDICTED}_high": predicted + Z_95 * error,
        }
    return [Point(name, value, number, live_at) for name, value in figures.items()]


def served_points(
    number: int, scores: Mapping[str, float], live_at: float, served: ServedDraft, *, is_all: bool
) -> list[Point]:
    """Return what a draft served: where that is all of it, with its interval and the error of what was predicted."""
    reading = served.accept_length
    if reading.value is None:
        return []
    if not is_all:
        return [Point(SERVED_FIRST, reading.value, number, live_at)]
    ends = {f"{SERVED}_low": reading.low, f"{SERVED}_high": reading.high}
    predicted = scores.get(PREDICTED_SCORE)
    error = None if predicted is None else reading.value - predicted
    figures = {SERVED: reading.value, **ends, ERROR: error}
    return [Point(name, value, number, live_at) for name, value in figures.items() if value is not None]


def calibrated(store: ModelStore, run: str) -> list[Calibrated]:
    """The drafts of which both are known, by number; of one that still serves, what its first rounds were."""
    predicted, first, served = (_by_number(store, run, name) for name in (PREDICTED, SERVED_FIRST, SERVED))
    low, high = (_by_number(store, run, f"{SERVED}_{end}") for end in ("low", "high"))
    predicted_low, predicted_high = (_by_number(store, run, f"{PREDICTED}_{end}") for end in ("low", "high"))
    found = first | served
    return [
        Calibrated(
            number=number,
            predicted=predicted[number],
            served=found[number],
            low=low.get(number),
            high=high.get(number),
            predicted_low=predicted_low.get(number),
            predicted_high=predicted_high.get(number),
        )
        for number in sorted(predicted.keys() & found.keys())
    ]


def log_calibration(store: ModelStore, lineage: str, shown: Iterable[tuple[int, str]]) -> None:
    """Draw what was predicted and served, for the lineage and for the runs `shown` that are there, (draft, run id)."""
    drafts = calibrated(store, lineage)
    for number, run in shown:
        if any(draft.number == number for draft in drafts) and is_writable(run_or_none(store, run)):
            store.client.log_figure(run, calibration_figure(drafts, number), CALIBRATION_PICTURE)
    if drafts:
        store.client.log_figure(lineage, calibration_figure(drafts, drafts[-1].number), CALIBRATION_PICTURE)
        store.client.log_figure(lineage, lineage_figure(drafts), LINEAGE_PICTURE)


def _by_number(store: ModelStore, run: str, metric: str) -> dict[int, float]:
    """Newest value by draft."""
    history = store.client.get_metric_history(run, metric)
    return {point.step: point.value for point in sorted(history, key=lambda point: point.timestamp)}
