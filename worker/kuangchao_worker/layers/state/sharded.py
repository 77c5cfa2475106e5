"""Parameters and optimizer of one rank where a plan splits them. The same face as `ParameterStore`.

The module comes whole and alike on every rank; `connect` leaves of it what is this rank's. Never makes links and never
chooses how to split.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from kuangchao_contracts.errors import InvalidInputError
from kuangchao_contracts.plan import ParallelPlan, Sharding
from kuangchao_contracts.rules import ParallelRules
from kuangchao_worker.layers.state import entries, reshard
from kuangchao_worker.layers.state.assembly import assembled, plain
from kuangchao_worker.layers.state.calling import Calling, Function
from kuangchao_worker.layers.state.chain import Part, Stage, chain, check_apart, cut, stages_on, units
from kuangchao_worker.layers.state.experts import (
    WHOLE,
    check_experts,
    check_tokens,
    copies_of,
    inside,
    keep_own,
    mixtures_of,
    spread,
)
from kuangchao_worker.layers.state.files import in_memory
from kuangchao_worker.layers.state.handing import Share
from kuangchao_worker.layers.state.hyperparameters import hyperparameters
from kuangchao_worker.layers.state.norms import sum_of_squares
from kuangchao_worker.layers.state.optimizers import divided_by, require_common_state
from kuangchao_worker.layers.state.passing import Passing, require_one_order
from kuangchao_worker.layers.state.seal import Owned
from kuangchao_worker.layers.state.source import SHARED_FILE, Source
from kuangchao_worker.layers.state.split import (
    check_divided,
    check_held,
    check_kinds,
    check_rules,
    divide,
    schedule_reduction,
    split_data,
    split_tensor,
)
from kuangchao_worker.layers.state.touched import Touched
from kuangchao_worker.layers.state.update import UpdateRule
from kuangchao_worker.parallel import comparing
from kuangchao_worker.parallel.dimensions import EXPERT, PIPELINE, TENSOR
from kuangchao_worker.parallel.naming import distinct

MakeOptimizer = Callable[[Iterable[nn.Parameter]], Optimizer]
MakeScheduler = Callable[[Optimizer], LRScheduler | None]
ALIKE = 1e-2
"""By what part norms of gradients may differ that were computed alike: what is in bf16 is rounded."""


class ShardedStore:
    """Owns this rank's share of module, optimizer and schedule. Usable once it is connected.

    `hyperparameters` are those of the optimizer over the whole model.
    """

    def __init__(
        self,
        module: nn.Module,
        make_optimizer: MakeOptimizer,
        make_scheduler: MakeScheduler | None,
        rules: ParallelRules,
        plan: ParallelPlan,
        rule: UpdateRule | None = None,
        share: Share | None = None,
    ) -> None:
        self._share = share
        self.module, self._rules, self._plan, self.rule = module, rules, plan, rule or UpdateRule()
        self._make_optimizer, self._make_scheduler = make_optimizer, make_scheduler
        self._links = chain(module, rules)
        check_rules(module, rules)
        if plan.expert > 1 or plan.tensor > 1:
            check_experts(module, rules, plan.expert)
        if plan.tensor > 1:
            check_held(module, rules, sequence=plan.sequence)
        if plan.sequence:
            check_divided(rules)
            check_tokens(module, rules)
        self._cut = cut(module, rules, plan) if plan.pipeline > 1 else ()
        if plan.data * plan.context > 1 or (plan.tensor > 1 and rules.experts):
            links = tuple(distinct(module, self._links))
            check_apart(module, ((link,) for link in links), "link, and data parallelism divides each by itself")
            check_kinds(module, links)
        optimizer = make_optimizer(module.parameters())
        require_common_state(optimizer)
        self._order, self.hyperparameters = _order(module, optimizer), hyperparameters(optimizer)
        self._every = frozenset(plain(module.state_dict()))
        self._require_trained()
        self.elements = sum(p.numel() for p in module.parameters() if p.requires_grad)
        self._compared = False
        self._mesh: DeviceMesh | None = None
        self._experts: DeviceMesh | None = None
        self._holders = entries.Holders(None)
        self._stages: Mapping[int, nn.Module] = {}
        self._calling = Calling(module)
        self._touched = Touched(module)
        self._passing = Passing((), self._touched.meet)
        self._held: dict[str, nn.Parameter] = {}
        self._scheduler: LRScheduler | None = None

    def _require_trained(self) -> None:
        """Raise InvalidInputError where the optimizer takes nothing of what a cut leaves on a pipeline rank."""
        for place in range(self._plan.pipeline if self._cut else 0):
            names = [name for n in stages_on(self._plan, place) for name in self._cut[n]]
            part = Part(self.module, names)
            if any(parameter.requires_grad for parameter in part.parameters()):
                continue
            try:
                self._make_optimizer(part.parameters())
            except ValueError as error:
                why = f"leaves pipeline rank {place} only frozen parameters, and task.optimizer takes none: {error}"
                raise InvalidInputError("plan.stageLayers", self._plan.stage_layers, why) from None

    def connect(self, mesh: DeviceMesh | None, experts: DeviceMesh | None = None) -> None:
        """Split the module over the mesh, its experts over theirs, then make the optimizer over what is left here."""
        if mesh is None:
            raise ValueError("a plan that splits a model has a mesh")
        self._mesh, self._holders = mesh, entries.Holders(mesh)
        parts: dict[int, tuple[nn.Module, tuple[str, ...]]] = {0: (self.module, self._links)}
        if PIPELINE in (mesh.mesh_dim_names or ()):
            parts = self._keep(mesh.get_local_rank(PIPELINE))
        if TENSOR in (mesh.mesh_dim_names or ()):
            split_tensor(self.module, mesh[TENSOR], self._rules, sequence=self._plan.sequence)
        if experts is not None:
            self._experts, self._holders = experts, self._own(experts)
        self._calling = Calling(self.module)
        for part, links in parts.values():
            # torch runs the stages of a pipeline, each by its own forward
            called = part if self._stages else self._calling
            split_data(called, mesh, units(part, links), self._plan)
            self._touched.watch(called, "" if self._stages else "module.")
        if not self._stages:
            self._passing = Passing([self.module.get_submodule(name) for name in self._links], self._touched.meet)
            self._passing.watch(self._calling, self.module)
        self._touched.keep(self.module)
        if self._share is not None:
            self._share.hand_out(self.module)
            self._share = None
        self._parameters = {name: p for name, p in self.module.named_parameters() if p.requires_grad}
        mixtures = mixtures_of(self.module, self._rules) if self._plan.sequence else ()
        self._on_own_tokens = [
            p for name, p in self._parameters.items() if inside(name, mixtures) and not self._holders.expert(name)
        ]
        self._held = dict(self.module.named_parameters())
        self._copies = {name: entries.copies(p, self._holders.of(name)) for name, p in self._parameters.items()}
        self._optimizer = self._make_optimizer(self.module.parameters())
        if self._make_scheduler is not None:
            self._scheduler = self._make_scheduler(self._optimizer)

    def _own(self, mesh: DeviceMesh) -> entries.Holders:
        """Leave of each layer's experts those of this rank, over the ranks that have the same."""
        layers = keep_own(self.module, self._rules, mesh.get_local_rank(EXPERT), mesh[EXPERT].size())
        copies = copies_of(mesh)
        shard = self._plan.sharding is not Sharding.NONE and copies.mesh_dim_names != WHOLE
        for names in layers:
            divide([self.module.get_submodule(name) for name in names], copies, self._plan, shard=shard)
        return entries.Holders(self._mesh, copies, tuple(name for names in layers for name in names))

    def _keep(self, place: int) -> dict[int, tuple[nn.Module, tuple[str, ...]]]:
        """Leave of the module the stages that stand on the pipeline rank `place`: those and their links, by number."""
        links = {n: self._cut[n] for n in stages_on(self._plan, place)}
        self._stages = {n: Stage(self.module, names) for n, names in links.items()}
        if len(links) == 1:
            (self.module,) = self._stages.values()
        else:
            # holds all of them under the names of the whole model: whoever saves or restores knows of no stages
            self.module = Part(self.module, [name for names in links.values() for name in names])
        return {n: (self._stages[n], names) for n, names in links.items()}

    def stages(self) -> Mapping[int, nn.Module]:
        """The stages of a pipeline that stand here, by their number in the model, in that order."""
        return self._stages

    def compute(self, function: Function, batch: Any) -> Any:
        """What a function of user code gives for the module and a batch, as one forward pass."""
        return self._calling(function, batch)

    @contextmanager
    def reduction(self, *, last: bool) -> Iterator[None]:
        """Around forward and backward of a micro-batch, which may be the last of its step."""
        schedule_reduction(self._calling, self._plan.sharding, last=last)
        yield

    def apply(self) -> float:
        """Update the parameters from the reduced gradients, clear them, and return the whole model's norm."""
        self._share_experts()
        self._add_up_tokens()
        norm = self._norm()
        if not self._compared and math.isfinite(norm):
            self._compare(norm)
        gradients = [p.grad for p in self._parameters.values() if p.grad is not None]
        with divided_by(self._optimizer):
            norm = self.rule.carry_out(norm, [entries.local(g) for g in gradients], self._optimizer, self._scheduler)
        self._touched.forget()
        return norm

    def _share_experts(self) -> None:
        """Make the gradients of experts those of the mean over all data ranks, as those of all else are."""
        for name, parameter in self.module.named_parameters():
            if self._holders.expert(name) and parameter.grad is not None:
                parameter.grad /= spread(self._plan)

    def _add_up_tokens(self) -> None:
        """Make the gradients of what stands beside experts whole, where each tensor rank has that of its own tokens."""
        if self._mesh is None or not self._on_own_tokens:
            return
        group = self._mesh.get_group(TENSOR)
        for parameter in self._on_own_tokens:
            if parameter.grad is not None and (piece := entries.local(parameter.grad)).numel():
                dist.all_reduce(piece, group=group)

    def _compare(self, norm: float) -> None:
        """Once: raise InvalidInputError for a parameter that tensor ranks have whole, with other gradients on each.

        Its module works on a part of the tokens or features, and the rules give it no style: its copies would go apart.
        """
        self._compared = True
        if self._mesh is None or TENSOR not in (self._mesh.mesh_dim_names or ()):
            return
        alike = {n: p for n, p in self._parameters.items() if not (_on(p, TENSOR) or self._holders.expert(n))}
        whole = {name: p.grad for name, p in alike.items() if p.grad is not None}
        if not whole:
            return
        own = torch.stack([entries.local(gradient).detach().double().norm() for gradient in whole.values()])
        near = comparing.near(own, ALIKE, norm * ALIKE**3, self._mesh.get_group(TENSOR))
        for name, same in zip(whole, near, strict=True):
            if not same:
                why = "has other gradients on each tensor rank: its module needs a style (sequence for a norm)"
                raise InvalidInputError("task.rules.tensor", name, why)

    def _norm(self) -> float:
        """Root of the squares of all ranks' pieces, each divided by how many ranks hold it.

        The same message tells what any rank has touched, and whether all have gathered links in one order.
        """
        held: dict[int, list[torch.Tensor]] = {}
        for name, parameter in self._parameters.items():
            if (gradient := _settled(parameter)) is not None:
                held.setdefault(self._copies[name], []).append(entries.local(gradient).detach())
        total = torch.zeros((), dtype=torch.float64, device=next(self.module.parameters()).device)
        for copies, pieces in held.items():
            # what a norm clips by must not depend on how it was added up; else it is told, to six digits
            total += sum_of_squares(pieces, exact=self.rule.clip_norm is not None) / copies
        flags = torch.tensor(self._touched.flags(), dtype=total.dtype, device=total.device)
        order = torch.tensor(self._passing.order(), dtype=total.dtype, device=total.device)
        message = torch.cat((total.view(1), order, flags))
        dist.all_reduce(message)
        squares, numbers, of_numbers, *touched = message.tolist()
        require_one_order(numbers, of_numbers, dist.get_world_size())
        self._agree_on(*self._touched.named([count > 0 for count in touched]))
        return math.sqrt(squares)

    def _agree_on(self, used: set[str], written: list[str]) -> None:
        """Leave without a gradient what no rank has used, as in one process, and let all have the same buffers."""
        for name, parameter in self._parameters.items():
            if name in self._touched.watched and name not in used:
                parameter.grad = None
        if self._mesh is not None and written:
            names = [axis for axis in self._mesh.mesh_dim_names or () if axis not in (PIPELINE, TENSOR)]
            self._touched.share(written, [self._mesh.get_group(axis) for axis in names])

    def payloads(self, rank: int, step: int) -> dict[str, Any]:
        """Files of this rank in a checkpoint: copies that later steps cannot change."""
        return reshard.payloads(self._entries(), self._holders, rank, step)

    def restore(self, source: Source) -> None:
        """Replace everything by a saved state. Raises RuntimeError, ValueError or KeyError when it does not fit."""
        found = self._entries()
        if any(file.path == SHARED_FILE for file in source.manifest.files):
            bare = reshard.fill_from_whole(found, source, self._order, self._every)
        else:
            bare = reshard.fill(found, source, self._every)
        entries.install(found, self.module, self._optimizer, self._scheduler, bare)

    def _entries(self) -> entries.Entries:
        with divided_by(self._optimizer):
            return entries.collect(self.module, self._optimizer, self._scheduler)

    def complete(self, make: Callable[[], nn.Module]) -> nn.Module | None:
        """A plain module with the weights of all ranks, on rank 0; None on others. All ranks must call."""
        state = self._gathered()
        if self._experts is not None:
            own = {name: tensor for name, tensor in state.items() if self._holders.expert(name)}
            state |= _joined(own, self._experts.get_group(EXPERT))
        if self._mesh is not None and PIPELINE in (self._mesh.mesh_dim_names or ()):
            stages = self._mesh.get_group(PIPELINE)
            # the stages of other groups have the same
            state = _joined(state, stages) if dist.get_process_group_ranks(stages)[0] == 0 else state
        if dist.get_rank() != 0:
            return None
        return assembled(make, state)

    def _gathered(self) -> dict[str, Any]:
        """What this rank has a part of, whole and in main memory, as far as rank 0 gets it from here.

        One tensor after the other, so that no device holds more of the model than it did.
        """
        staged = self._mesh is not None and PIPELINE in (self._mesh.mesh_dim_names or ())
        stages = self._mesh.get_group(PIPELINE) if self._mesh is not None and staged else None
        asked = (dist.get_rank() if stages is None else dist.get_process_group_ranks(stages)[0]) == 0
        found: dict[str, Any] = {}
        for name, value in get_model_state_dict(self.module).items():
            whole = value.full_tensor() if isinstance(value, DTensor) else value
            if asked or self._holders.expert(name):
                found[name] = in_memory(whole)
        return found

    def owned(self) -> Owned:
        """What nobody else may change."""
        return Owned(self.module, self._optimizer, self._scheduler)

    def parameters(self) -> dict[str, torch.Tensor]:
        """This rank's pieces of the parameters, by name."""
        # not as the module has them now: in a forward pass torch puts whole ones in their place
        return {name: entries.local(parameter).detach() for name, parameter in self._held.items()}


def _joined(state: dict[str, Any], group: dist.ProcessGroup) -> dict[str, Any]:
    """What all ranks of the group have, on its first one; on others what they had."""
    first = dist.get_process_group_ranks(group)[0]
    parts: list[Any] | None = [None] * dist.get_world_size(group) if dist.get_rank() == first else None
    dist.gather_object(in_memory(state), parts, dst=first, group=group)
    return {name: tensor for part in parts or [state] for name, tensor in part.items()}


def _on(parameter: nn.Parameter, axis: str) -> bool:
    """Whether it lies on an axis of the mesh, split or not."""
    return isinstance(parameter, DTensor) and axis in (parameter.device_mesh.mesh_dim_names or ())


def _order(module: nn.Module, optimizer: Optimizer) -> list[str]:
    """Names of the parameters as the optimizer numbers them."""
    names = {id(parameter): name for name, parameter in plain(dict(module.named_parameters())).items()}
    return [names[id(parameter)] for group in optimizer.param_groups for parameter in group["params"]]


def _settled(parameter: nn.Parameter) -> torch.Tensor | None:
    """The gradient, put as its parameter lies where backward left it otherwise: sums still to be made, or whole."""
    gradient = parameter.grad
    if not isinstance(gradient, DTensor) or not isinstance(parameter, DTensor):
        return gradient
    if gradient.placements != parameter.placements:
        parameter.grad = gradient = gradient.redistribute(placements=parameter.placements)
    return gradient
