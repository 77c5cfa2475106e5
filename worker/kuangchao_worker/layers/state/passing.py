"""Links that a forward pass leaves out, as stochastic depth does, where ranks gather and reduce the model by links.

A rank that leaves one out must gather and reduce it all the same, at the same place, or ranks would mix up parts of
different links. So what the next link is given, or the loss, is led through the link's own gathering and past its
weights: its values stay, and on the way back the link has its turn, with no gradient from this rank.
"""

import zlib
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.utils._pytree import tree_map_only

from kuangchao_contracts.errors import RanksDifferError

ORDERS: Final = 1 << 20
"""So many orders are told apart. Squares of such numbers, of thousands of ranks, add up exactly in fp64."""


class Passing:
    """The links of a chain in the order of their calls. `gathered` is told of those left out that are whole."""

    def __init__(self, links: Sequence[nn.Module], gathered: Callable[[nn.Module], None]) -> None:
        self._links: list[nn.Module] = [link for link in links if isinstance(link, FSDPModule)]
        self._gathered, self._next, self._open, self._order = gathered, len(self._links), False, 0

    def watch(self, root: nn.Module, model: nn.Module) -> None:
        """Notice calls of the links from now on, in passes of the root, which may call the model several times."""
        if not self._links:
            return
        # not part of what is compiled, where the model is: as torch has it for what it does around a link itself
        apart: Callable[[Any], Any] = torch.compiler.disable  # it has annotations in part
        for link in {id(link): link for link in self._links}.values():
            # before the link itself is gathered
            link.register_forward_pre_hook(apart(self._called), prepend=True, with_kwargs=True)
        root.register_forward_pre_hook(apart(self._begun), prepend=True)
        root.register_forward_hook(apart(self._ended), prepend=True)
        model.register_forward_pre_hook(apart(self._again))
        model.register_forward_hook(apart(self._over))

    def order(self) -> tuple[float, float]:
        """A number for the order in which links were gathered since the last step, and its square: to be added up."""
        number, self._order = self._order % ORDERS, 0
        return float(number), float(number * number)

    def _begun(self, _: nn.Module, given: tuple[Any, ...]) -> None:
        self._next, self._open = 0, True
        del given

    def _ended(self, _: nn.Module, given: tuple[Any, ...], output: Any) -> Any:
        del given
        output = self._rest(output)
        self._open = False
        return output

    def _again(self, _: nn.Module, given: tuple[Any, ...]) -> None:
        self._next = 0 if self._open else self._next
        del given

    def _over(self, _: nn.Module, given: tuple[Any, ...], output: Any) -> Any:
        del given
        return self._rest(output)

    def _called(self, link: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if not self._open:
            return None  # in a backward pass, which computes it once more
        place = next((n for n in range(self._next, len(self._links)) if self._links[n] is link), None)
        changed = (given, named)
        if place is not None:
            changed = self._until(place, changed)
            self._next = place + 1
        self._note(link)
        return changed

    def _rest(self, output: Any) -> Any:
        return self._until(len(self._links), output) if self._open else output

    def _until(self, place: int, value: Any) -> Any:
        """The value with the first of its tensors led through the links that were due before `place`."""
        due, led = self._links[self._next : place], False

        def lead(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal led
            if led or not tensor.is_floating_point():
                return tensor
            led, self._next = True, place
            for link in due:
                tensor = self._past(link, tensor)
            return tensor

        return tree_map_only(torch.Tensor, lead, value) if due else value

    def _note(self, link: nn.Module) -> None:
        place = next(n for n, other in enumerate(self._links) if other is link)
        self._order = zlib.crc32(place.to_bytes(4), self._order)

    def _past(self, link: nn.Module, hidden: torch.Tensor) -> torch.Tensor:
        assert isinstance(link, FSDPModule)
        self._note(link)
        trained = any(parameter.requires_grad for parameter in link.parameters())
        if trained and torch.is_grad_enabled() and not hidden.requires_grad:
            # as what the link gives would: then it is gathered on the way back as well
            hidden = hidden.detach().requires_grad_()
        state = link._get_fsdp_state()  # noqa: SLF001 - what torch calls around the link's forward has no other name
        (hidden,), _ = state._pre_forward(link, (hidden,), {})  # noqa: SLF001 - as above
        self._gathered(link)
        # no view, which a write in place would cut from what is noted of it
        passed: torch.Tensor = state._post_forward(link, (hidden,), hidden.clone())  # noqa: SLF001 - as above
        return passed


def require_one_order(numbers: float, squares: float, world: int) -> None:
    """Raise RanksDifferError where what `order` gave on all ranks, added up, is not the same number on each."""
    if int(squares) * world != int(numbers) ** 2:
        raise RanksDifferError(
            "the model calls its links (task.rules.chain) in another order on some ranks, or some of them more often;"
            " sharded data gathers their weights in that order, so each rank may leave links out, and no more"
        )
