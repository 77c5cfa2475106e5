"""Reads the hardware figures that are shipped with this release. The one module here that reads a file."""

from functools import cache
from importlib import resources

from kuangchao_operator.layers.strategy.timing.hardware import Hardware


@cache
def load() -> Hardware:
    """The figures of this release."""
    return Hardware.model_validate_json(resources.files(__package__).joinpath("hardware.json").read_bytes())
