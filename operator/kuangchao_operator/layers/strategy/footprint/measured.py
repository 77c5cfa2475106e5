"""The footprint of a model that is known by its sizes only. Pure.

Its states can be sharded. How tensor ranks or stages divide it nobody says before a worker has seen it, so what is
counted is an upper bound: every tensor rank holds all of it, and any stage may, with all that its micro-batches keep.
What a stage sends and receives needs no buffer beside that: it is among what the stages beside it keep.
"""

from kuangchao_contracts.plan import MeasuredModel
from kuangchao_operator.layers.strategy.footprint.calibration import Calibration
from kuangchao_operator.layers.strategy.footprint.parameters import Share
from kuangchao_operator.layers.strategy.footprint.peaks import Peak, peak
from kuangchao_operator.layers.strategy.footprint.schedules import in_flight
from kuangchao_operator.layers.strategy.footprint.setting import Setting
from kuangchao_operator.layers.strategy.footprint.stages import Stage


def measured_peaks(model: MeasuredModel, setting: Setting, calibration: Calibration) -> tuple[Peak, ...]:
    """The stages of a setting whose own model is `SHAPELESS`."""
    return tuple(
        peak(_stage(number, model, setting), setting, calibration) for number in range(setting.layout.pipeline)
    )


def measured_fullest(model: MeasuredModel, setting: Setting, calibration: Calibration) -> Peak:
    """The first of them: in no schedule has another one more micro-batches in flight."""
    return peak(_stage(0, model, setting), setting, calibration)


def _stage(number: int, model: MeasuredModel, setting: Setting) -> Stage:
    layout, held = setting.layout, Share(replicated=model.parameters)
    # chunks of a stage share what the model keeps, so no more than all of it is as often in flight as any of them is
    flying = max(in_flight(setting.schedule, number, layout.pipeline, layout.virtual, setting.micro_batches))
    return Stage(
        number=number,
        held=held,
        trained=Share(replicated=trainable(model)),
        # where its layers begin and end is not known, so sharding gathers it whole
        largest=held,
        end=Share(),
        has_head=False,
        activations=flying * setting.micro_batch * model.activation_bytes_per_sample,
        transient=0,
        layers_in_flight=0,
        whole_in_flight=flying,
        fixed=model.buffer_bytes,
    )


def trainable(model: MeasuredModel) -> int:
    """Parameters that have a gradient and optimizer states."""
    return model.parameters if model.trainable_parameters is None else model.trainable_parameters
