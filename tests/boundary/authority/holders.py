"""Who could hold a token: every layer, agent and rank of the job, and the same parties of another tenant.

RIGHTS says once more, apart from the policy, who may do what: a right given by mistake fails the tests.
"""

from dataclasses import dataclass, replace
from typing import Final

from kuangchao_contracts.claims import SYSTEM
from kuangchao_contracts.layers import Layer
from kuangchao_contracts.ports.base import Operation
from kuangchao_contracts.resources import CLUSTER

NS, JOB, ATTEMPT = "team-a", "digits", 3


@dataclass(frozen=True)
class Holder:
    """A party with its job. Layers have no pod and no ranks."""

    subject: str
    namespace: str = NS
    job: str = JOB
    job_uid: str = "uid-1"
    attempt: int = ATTEMPT
    pod: str | None = None
    ranks: str | None = None

    @property
    def role(self) -> str:
        """As the policy names it."""
        return self.subject if self.subject.startswith("layer:") else self.subject.split(":")[0]


def worker(role: str, namespace: str = NS, job: str = JOB, uid: str = "uid-1") -> Holder:
    return Holder(f"{role}:{namespace}/{job}/w-0", namespace, job, uid, pod="w-0", ranks="0-3")


LAYERS: Final = {layer.subject: Holder(layer.subject) for layer in Layer}
HOLDERS: Final[dict[str, Holder]] = LAYERS | {
    "agent": worker("agent"),
    "rank": worker("rank"),
    "other tenant's layer": replace(LAYERS["layer:execution"], namespace="team-b", job_uid="uid-b"),
    "other tenant's agent": worker("agent", "team-b", JOB, "uid-b"),
    "other tenant's rank": worker("rank", "team-b", JOB, "uid-b"),
}
OTHER_JOB: Final = Holder("", job="letters", job_uid="uid-2")
CLOSED: Final = Holder("", job_uid="uid-closed")
REVOKED_JTI: Final = "R" * 22

RIGHTS: Final[dict[str, frozenset[str]]] = {
    "topology.build": frozenset({"rank"}),
    "topology.destroy": frozenset({"rank"}),
    "strategy.plan": frozenset({"layer:execution"}),
    "strategy.replan": frozenset({"layer:execution"}),
    "execution.launch": frozenset({"layer:execution", "layer:state"}),
    "execution.stop": frozenset({"layer:execution", "layer:state"}),
    "execution.reclaim": frozenset({"layer:execution"}),
    "execution.join": frozenset({"agent"}),
    "execution.heartbeat": frozenset({"agent"}),
    "execution.context": frozenset({"rank"}),
    "state.assess": frozenset({"layer:execution"}),
    "state.commit_checkpoint": frozenset({"agent"}),
    "state.restore_point": frozenset({"agent"}),
    "state.submit_gradients": frozenset({"rank"}),
    "state.save": frozenset({"rank"}),
    "state.restore": frozenset({"rank"}),
    "state.snapshot": frozenset({"rank"}),
    "governance.query": frozenset({"layer:governance", "layer:interface"}),
    "governance.verify": frozenset({"layer:governance"}),
    "governance.prove": frozenset({"layer:governance"}),
    "plugin.open_step": frozenset({"rank"}),
    "plugin.save": frozenset({"rank"}),
    "plugin.restore": frozenset({"rank"}),
    "interface.exchange": frozenset({"agent"}),
    "interface.feed": frozenset({"agent"}),
}


def victim(op: Operation) -> str:
    """The resource that everybody tries to call: the job, or the records of the cluster."""
    return f"{CLUSTER}/audit/records" if op.kind == "audit" else f"{NS}/{op.kind}/{JOB}"


def holder_for(op: Operation, name: str) -> Holder:
    """A holder as it would call this operation: whoever asks for records of the cluster belongs to no job."""
    holder = HOLDERS[name]
    if op.kind == "audit" and name.startswith("layer:"):
        return replace(holder, namespace=CLUSTER, job=SYSTEM, job_uid=SYSTEM, attempt=1)
    return holder


def may(op: Operation, name: str) -> bool:
    """Whether this holder has the right to call an operation on the victim's resource."""
    return name in RIGHTS[op.name]
