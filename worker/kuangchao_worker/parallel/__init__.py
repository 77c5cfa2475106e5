"""What a model calls where its tokens need one another: the plain operation in one process, over ranks under a plan.

A task that uses these trains under context and expert parallelism unchanged. Makes no groups and owns no parameters.
"""

from kuangchao_worker.parallel.attention import attention, positions
from kuangchao_worker.parallel.experts import mixture

__all__ = ["attention", "mixture", "positions"]
