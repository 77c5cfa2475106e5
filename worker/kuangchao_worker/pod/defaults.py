"""Environment variables that ranks, and the processes they are forked from, begin with unless the job gives others."""

from typing import Final

RANK_DEFAULTS: Final = {
    "OMP_NUM_THREADS": "1",
    # torch advises against find_unused_parameters, which is set on purpose (see layers/state/parameters.py)
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    # or the profiler, which measures a step now and then, writes of it each time (see layers/execution/traffic.py)
    "KINETO_LOG_LEVEL": "6",
}
