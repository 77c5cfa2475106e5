"""What this process held at most, for the plan that comes after an out-of-memory. Measures, decides nothing."""

import resource

from kuangchao_worker.layers.execution.meter import resident
from kuangchao_worker.pod.memory import UNKNOWN, Figures, refused


def measured(error: BaseException) -> Figures:
    """Peak and limit of a rank whose allocator has just raised `error`, as the planner counts them.

    On a GPU: bytes that torch's allocator has given out (max_memory_allocated), and the device's memory. In main
    memory: the resident set of the whole process (ru_maxrss); its limit is the pod's, which the agent knows. Either way
    with what was refused on top of what is held now: no less would have done to go on.
    """
    import torch

    asked = refused(str(error))
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch does not say
        return Figures(max(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, resident() + asked))
    if isinstance(error, MemoryError) or "DefaultCPUAllocator" in str(error):
        # main memory beside a GPU: the planner counts the GPU's only, so the figure would mislead it
        return UNKNOWN
    peak = max(torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated() + asked)
    return Figures(peak, torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory)
