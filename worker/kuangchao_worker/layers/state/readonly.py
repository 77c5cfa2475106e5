"""Tensors that can be read and not written to: what is computed from them is plain, views of them stay as they are.

torch's own inference tensors say so only once they have been written to. Code that means to write finds the memory
underneath all the same.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from kuangchao_contracts.errors import UnleasedWriteError
from kuangchao_worker.layers.state.operators import arguments, writes


class ReadOnly(torch.Tensor):
    """Shows another tensor. A copy of it (`clone`) is a plain one, and so is what is computed from it."""

    _shown: torch.Tensor

    @staticmethod
    def __new__(cls, shown: torch.Tensor) -> "ReadOnly":
        """Around a tensor without gradient."""
        made: ReadOnly = torch.Tensor._make_wrapper_subclass(  # noqa: SLF001 - torch's way
            cls, shown.shape, strides=shown.stride(), dtype=shown.dtype, device=shown.device
        )
        made._shown = shown
        return made

    # as torch's own subclasses do it; torch gives neither method a type that one could keep to
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # noqa: SLF001

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Raises UnleasedWriteError for an operation that would write to one of these."""
        del types
        named = dict(kwargs or {})
        given = arguments(func, args, named)
        for argument, value in given:
            if writes(argument) and isinstance(value, cls):
                raise UnleasedWriteError(
                    f"{func} would write to a snapshot of the weights, which others read: clone it"
                )
        memory = {bare(value).untyped_storage().data_ptr() for _, value in given if isinstance(value, cls)}
        result = func(*tree_map_only(cls, bare, args), **tree_map_only(cls, bare, named))

        def still(tensor: torch.Tensor) -> torch.Tensor:
            return cls(tensor) if tensor.untyped_storage().data_ptr() in memory else tensor

        return tree_map_only(torch.Tensor, still, result)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]  # torch's has no types
        """As the tensor that it shows."""
        del tensor_contents
        return f"ReadOnly({self._shown!r})"


def bare(tensor: torch.Tensor) -> torch.Tensor:
    """What it shows; a plain tensor as it is."""
    return tensor._shown if isinstance(tensor, ReadOnly) else tensor  # noqa: SLF001 - same module
