"""What an agent sends to the process that forks its ranks, so that they write where the pod does."""

from typing import Final

OUTPUTS: Final = (1, 2)
"""Descriptors: standard output and error of the pod, which are its ranks' too."""
