"""What reviewers see in the pictures of MLflow, read from the lines that are drawn."""

from paceline.learner.delivery.tracking.figures import Calibrated, lineage_figure


def upright(figure) -> list[tuple[float, list[float]]]:
    """Where each upright line stands, and from where to where it goes."""
    (axes,) = figure.axes
    lines = [([float(x) for x in line.get_xdata()], list(line.get_ydata())) for line in axes.lines]
    return [(xs[0], ys) for xs, ys in lines if len(xs) == 2 and xs[0] == xs[1]]


def test_the_lineage_draws_both_intervals_of_a_draft_side_by_side_and_none_that_is_not_known():
    drafts = [
        Calibrated(number=1, predicted=2.0, served=2.2, low=2.1, high=2.3),
        Calibrated(number=2, predicted=2.4, served=2.5, low=2.3, high=2.7, predicted_low=2.2, predicted_high=2.6),
        Calibrated(number=3, predicted=2.4, served=2.5),
        Calibrated(number=4, predicted=2.4, served=2.5, predicted_low=2.2),
    ]
    served_1, predicted_2, served_2 = upright(lineage_figure(drafts))
    assert (served_1, served_2) == ((1.0, [2.1, 2.3]), (2.0, [2.3, 2.7]))
    assert predicted_2[1] == [2.2, 2.6]
    assert 2.0 < predicted_2[0] < 2.2


def test_the_lineage_has_what_was_predicted_and_served_of_every_draft():
    (axes,) = lineage_figure(
        [Calibrated(number=1, predicted=2.0, served=2.2), Calibrated(number=3, predicted=2.4, served=2.5)]
    ).axes
    drawn = {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines}
    assert drawn == {
        "predicted, 95 % interval": ([1, 3], [2.0, 2.4]),
        "served, 95 % interval": ([1, 3], [2.2, 2.5]),
    }
