"""Gradient compression as a plug-in between algorithm and state. Values in, values out; sends nothing itself."""

from typing import Final

VERSION: Final = "1"
"""Of the payloads' form: ranks with different ones do not start."""
