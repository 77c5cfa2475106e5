"""The benchmark of the operation log runs and gives its figures; what they come to is no matter of a test."""

from bench.steplog import figures


def test_figures_are_measured() -> None:
    found = {figure.name: figure for figure in figures(quick=True)}
    assert len(found) == 4
    assert all(figure.group == "authority" and figure.value > 0 for figure in found.values())
