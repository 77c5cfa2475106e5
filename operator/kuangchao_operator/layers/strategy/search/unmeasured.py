"""GPUs whose memory nobody knows: the refusal of a model on them, with the least that would do. Pure.

Whether a model fits is then unknown, and a plan that may not fit is no plan. Without a model nothing is claimed of
memory, and nothing refused; main memory that is not known is what the kubelet does not limit.
"""

from kuangchao_contracts.plan import Infeasible
from kuangchao_contracts.units import least_bytes
from kuangchao_operator.layers.strategy import laws
from kuangchao_operator.layers.strategy.footprint.budget import device_bytes_for
from kuangchao_operator.layers.strategy.refusal import refused
from kuangchao_operator.layers.strategy.search.best import Closest
from kuangchao_operator.layers.strategy.search.trial import Trial


def unmeasured(tried: Trial) -> Infeasible | None:
    """The refusal; None where the memory is known, is no matter, or no layout keeps the other laws anyway."""
    space, shape = tried.search.space, tried.shape
    if shape.kind != "gpu" or shape.memory_bytes or not space.known:
        return None
    closest = _closest(tried)
    if closest is None:
        return None
    near = least_bytes(device_bytes_for(closest.need, space.backend, tried.known.calibration))
    message = (
        f"deviceMemory=0 B: the memory of {shape.model or 'the GPU'} is not known (memoryBytes of its"
        f" ResourceDescriptor is 0), so that no plan can be said to fit; the least with which one does: {near}"
    )
    return refused(
        reason="Infeasible",
        field="deviceMemory",
        value="0 B",
        nearest=near,
        message=message,
        rejected=laws.rejected_axes(tried.request),
    )


def _closest(tried: Trial) -> Closest | None:
    """What needs least: what is closest to fitting where nothing fits, on devices of a single byte."""
    shapes = tuple(one if one.memory_bytes else one.replace(memory_bytes=1) for one in tried.request.shapes)
    search = tried.again(tried.request.replace(shapes=shapes)).search
    assert next(search.ranked(), None) is None, "something fits a byte"
    return search.closest
