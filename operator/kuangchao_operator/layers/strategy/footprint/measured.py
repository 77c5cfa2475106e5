"""The footprint of a model that is known by its sizes only: one stage without layers. Pure.

It cannot be cut, so every rank holds all of it; its states can be sharded.
"""

from kuangchao_contracts.plan import MeasuredModel, TransformerModel
from kuangchao_operator.layers.strategy.footprint.calibration import Calibration
from kuangchao_operator.layers.strategy.footprint.parameters import Share
from kuangchao_operator.layers.strategy.footprint.peaks import Peak, peak
from kuangchao_operator.layers.strategy.footprint.setting import Setting
from kuangchao_operator.layers.strategy.footprint.stages import Stage

SHAPELESS = TransformerModel(name="measured", layers=1, hidden=1, heads=1, ffn=1, vocab=1)
"""Stands in a Setting for a model without a shape: of an undivided stage without an output layer no part is asked of
it."""


def measured_peak(model: MeasuredModel, setting: Setting, calibration: Calibration) -> Peak:
    """The one stage of a setting whose own model is `SHAPELESS`."""
    held = Share(replicated=model.parameters)
    return peak(
        Stage(
            number=0,
            held=held,
            trained=Share(replicated=trainable(model)),
            # where its layers begin and end is not known, so sharding gathers it whole
            largest=held,
            end=Share(),
            has_head=False,
            activations=setting.micro_batch * model.activation_bytes_per_sample,
            transient=0,
            layers_in_flight=0,
            fixed=model.buffer_bytes,
        ),
        setting,
        calibration,
    )


def trainable(model: MeasuredModel) -> int:
    """Parameters that have a gradient and optimizer states."""
    return model.parameters if model.trainable_parameters is None else model.trainable_parameters
