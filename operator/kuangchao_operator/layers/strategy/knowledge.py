"""What the planner knows beside a request: figures of frameworks and of devices. Values only; reads nothing."""

from typing import NamedTuple

from kuangchao_operator.layers.strategy.footprint.calibration import Calibration
from kuangchao_operator.layers.strategy.timing.hardware import Hardware


class Knowledge(NamedTuple):
    """The data that a plan depends on and that no request carries."""

    calibration: Calibration
    hardware: Hardware
