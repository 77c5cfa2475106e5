"""The parameters and the optimizer of one rank. Only the state layer changes them; user code gets a module to call."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from kuangchao_worker.layers.state import fit, hidden
from kuangchao_worker.layers.state.assembly import assembled, named_as, plain
from kuangchao_worker.layers.state.calling import Calling, Function
from kuangchao_worker.layers.state.files import in_memory
from kuangchao_worker.layers.state.hyperparameters import hyperparameters
from kuangchao_worker.layers.state.seal import Owned
from kuangchao_worker.layers.state.source import SHARED_FILE, Source
from kuangchao_worker.layers.state.update import UpdateRule


class ParameterStore:
    """Owns module, optimizer and schedule."""

    def __init__(
        self, module: nn.Module, optimizer: Optimizer, scheduler: LRScheduler | None, rule: UpdateRule | None = None
    ) -> None:
        self.module, self.rule = module, rule or UpdateRule()
        self._optimizer, self._scheduler = optimizer, scheduler
        self.hyperparameters = hyperparameters(optimizer)
        self._parameters = [p for p in module.parameters() if p.requires_grad]
        self.elements = sum(p.numel() for p in self._parameters)
        self.wrapped: nn.Module = Calling(module)
        """What is called with a function of the module and a batch; torch's own wrapper where there are ranks."""
        self.taken: str | None = None
        """Who takes gradients as DDP reduces them, if somebody does."""
        self._hidden: bool | None = None
        """Whether the graphs of losses hide layers; None: not known yet."""

    def connect(self, mesh: DeviceMesh | None = None, experts: DeviceMesh | None = None) -> None:
        """Reduce gradients over all ranks from now on, whatever the meshes are. Call once the links are there."""
        del mesh, experts
        if dist.get_world_size() == 1 or not self._parameters:
            return
        # DDP rebuilds its buckets after the first iteration, so a restarted run would sum in another layout once more
        # and differ in the last bit. find_unused_parameters=True turns the rebuild off: the layout is that of the
        # parameters' order from the first step on, and buckets still overlap with the backward pass.
        # Gradients lie in the buckets, so nothing is copied back out of them.
        self.wrapped = DistributedDataParallel(self.wrapped, find_unused_parameters=True, gradient_as_bucket_view=True)

    def compute(self, function: Function, batch: Any) -> Any:
        """What a function of user code gives for the module and a batch, as one forward pass."""
        wrapped = self.wrapped
        if not isinstance(wrapped, DistributedDataParallel):
            return wrapped(function, batch)

        def shown(module: nn.Module, given: Any) -> Any:
            loss = function(module, given)
            if self._hidden is None and torch.is_grad_enabled():
                self._hidden = self._hides(loss)
            if self._hidden:
                wrapped.require_backward_grad_sync = False
            return loss

        return wrapped(shown, batch)

    def _hides(self, loss: torch.Tensor) -> bool:
        """Whether that of any rank hides layers. Raises InvalidInputError where they may not be hidden."""
        found = hidden.any_hides(mine=hidden.hides(loss), device=loss.device)
        if found and self.taken is not None:
            raise hidden.refused(f"with use_reentrant=True hides layers from {self.taken}, which takes their gradients")
        return found

    @contextmanager
    def reduction(self, *, last: bool) -> Iterator[None]:
        """Around forward and backward of a micro-batch: gradients of all but the last are only added up locally."""
        wrapped = self.wrapped
        if not isinstance(wrapped, DistributedDataParallel):
            yield
        elif not last:
            with wrapped.no_sync():
                yield
        else:
            try:
                yield
            except RuntimeError as error:
                if hidden.TWICE not in str(error):
                    raise
                why = "with use_reentrant=True, or another of its kind, is in this step and was not in the first one"
                raise hidden.refused(why) from error
            if self._hidden:
                wrapped.require_backward_grad_sync = True
                hidden.add_up(self._parameters)

    def apply(self) -> float:
        """Update the parameters from the reduced gradients, clear them, and return their global norm."""
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        norm = float(nn.utils.get_total_norm(gradients)) if gradients else 0.0
        return self.rule.carry_out(norm, gradients, self._optimizer, self._scheduler)

    def payloads(self, rank: int, step: int) -> dict[str, Any]:
        """Files of this rank in a checkpoint: all is equal on every rank, so rank 0 writes for all."""
        return {SHARED_FILE: {"step": step, **self.state()}} if rank == 0 else {}

    def state(self) -> dict[str, Any]:
        """A copy of everything in main memory that later steps cannot change."""
        parts = {
            "module": plain(self.module.state_dict()),
            "optimizer": self._optimizer.state_dict(),
            "scheduler": self._scheduler.state_dict() if self._scheduler is not None else None,
        }
        return {name: in_memory(part) for name, part in parts.items()}

    def restore(self, source: Source) -> None:
        """Replace everything by a saved state. Raises InvalidInputError for that of another model or optimizer."""
        shared = source.read(SHARED_FILE)
        if shared is not None:
            self.load(shared, source.checkpoint.path)
            return
        # most of a second of imports, for those only who come from a plan that splits the model
        from kuangchao_worker.layers.state import entries, optimizers, reshard

        optimizers.require_common_state(self._optimizer)
        found = entries.collect(self.module, self._optimizer, self._scheduler)
        bare = reshard.fill(found, source, plain(self.module.state_dict()))
        entries.install(found, self.module, self._optimizer, self._scheduler, bare)

    def load(self, state: dict[str, Any], path: str) -> None:
        """Replace everything by a saved state, of the checkpoint `path`. Raises as `restore`."""
        # compared only then: a module may have its own way to take what it saved under other names
        try:
            self.module.load_state_dict(named_as(self.module, state["module"]))
        except RuntimeError:
            own = plain(self.module.state_dict())
            fit.same_model(path, fit.shapes(plain(state["module"])), fit.shapes(own), every=own)
            raise
        try:
            self._optimizer.load_state_dict(state["optimizer"])
        except ValueError:
            groups = fit.group_sizes(state["optimizer"]["param_groups"]), fit.group_sizes(self._optimizer.param_groups)
            fit.same_optimizer(path, *groups)
            raise
        if self._scheduler is not None:
            self._scheduler.load_state_dict(state["scheduler"])

    def complete(self, make: Callable[[], nn.Module]) -> nn.Module | None:
        """A plain module with the weights as they are now, on rank 0; None on others, which need no copy.

        A copy, so whoever reads it cannot write to ours.
        """
        if dist.is_initialized() and dist.get_rank() != 0:
            return None
        return assembled(make, in_memory(self.module.state_dict()))

    def owned(self) -> Owned:
        """What nobody else may change."""
        return Owned(self.module, self._optimizer, self._scheduler)

    def parameters(self) -> dict[str, torch.Tensor]:
        """The live parameters by name."""
        return dict(self.module.named_parameters())
