"""How many parameters a model has, however it is described. Pure."""

from kuangchao_contracts.plan import MeasuredModel, ModelDescriptor
from kuangchao_operator.layers.strategy.footprint import measured, parameters


def parameter_count(model: ModelDescriptor) -> int:
    """Parameters of a model, without padding of the vocabulary."""
    return model.parameters if isinstance(model, MeasuredModel) else parameters.count(model)


def trainable_count(model: ModelDescriptor) -> int:
    """Parameters that have a gradient and optimizer states."""
    return measured.trainable(model) if isinstance(model, MeasuredModel) else parameters.trainable_count(model)
