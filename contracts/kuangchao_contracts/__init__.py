"""Shared vocabulary of Kuangchao: frozen models, ports, the gate and token verification.

Every process imports this package; it must never import kopf, kubernetes, torch or anything of the
operator or the worker, and it must never be able to sign a token.
"""

__version__ = "0.1.0"
