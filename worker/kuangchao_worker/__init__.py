"""What runs inside a worker pod: the agent, the ranks, and the worker halves of topology, execution and state.

Has no rights of its own: everything it asks of the control plane goes through the gate with a mounted token. Must
never import kopf, kubernetes or anything of the operator.
"""

from typing import Final

from kuangchao_worker.reports import report

__version__: Final = "0.1.0"
__all__ = ["report"]
