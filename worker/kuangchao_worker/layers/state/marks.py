"""What state notes on a parameter of a model that is not split yet. Imports nothing, for every rank reads it."""

from typing import Final

MADE_BY: Final = "_kuangchao_made_by"
"""The rank that makes the first weights of a parameter for all; not there where every rank makes them."""
