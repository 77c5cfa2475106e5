"""Reads the calibration that is shipped with this release. The one module here that reads a file."""

from functools import cache
from importlib import resources

from kuangchao_operator.layers.strategy.footprint.calibration import Calibration


@cache
def load() -> Calibration:
    """The calibration of this release."""
    text = resources.files(__package__).joinpath("calibration.json").read_bytes()
    return Calibration.model_validate_json(text)
