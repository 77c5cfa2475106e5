"""What authority costs: verifying a token, judging a call, a step call, and what a training step feels of it.

In this process, with tokens of the issuer's own minting. Each cost is set against its bare counterpart by turns, so
that both meet one noise: signature checks against the library's alone, calls through the gate against the same method.
"""

import base64
import gc
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from bench import steplog
from bench.figures import Bound, Figure, percentile
from bench.workloads import workload
from kuangchao_contracts.claims import Grant
from kuangchao_contracts.gate import Fence, Gate, authorise
from kuangchao_contracts.keys import KeySet
from kuangchao_contracts.minting import MintRequest
from kuangchao_contracts.oplog import OperationLog
from kuangchao_contracts.oplogfile import LogFile
from kuangchao_contracts.policy import BUILT_IN
from kuangchao_contracts.ports import OPERATIONS
from kuangchao_contracts.ports.state import StateRank, StepResult, SubmitGradients
from kuangchao_contracts.tokens import TokenVerifier
from kuangchao_operator.gate.minting import RANK_LEASES
from kuangchao_operator.signing.keystore import KeyStore
from kuangchao_operator.signing.mint import Minter
from kuangchao_operator.signing.policy import PolicyKeeper

ISSUER, JOB, UID, ATTEMPT = "kuangchao/bench", "digits", "bench", 1
RESOURCE = f"bench/jobs/{JOB}"
STEP = OPERATIONS["state.submit_gradients"]
STEP_SECONDS = 0.05
"""The training step that the relative cost is of."""
HIT_P99, MISS_MORE, MISS_TIMES, AUTHORISE, TRAINING = 50.0, 30.0, 1.5, 10.0, 1.0
LIBRARY = "cryptography"


class OneAttempt(Fence):
    """As in a rank: one attempt, and nothing revoked."""

    def attempt(self, job_uid: str) -> int | None:
        return ATTEMPT if job_uid == UID else None

    def revoked(self, jti: str) -> bool:  # noqa: ARG002 - the port's signature
        return False


class Bare(StateRank):
    """A layer that does nothing, so that what is measured is the way to it."""

    answer = StepResult(step=1, gradient_norm="1", elements=1)

    def submit_gradients(self, capability: Any, request: SubmitGradients) -> StepResult:  # noqa: ARG002
        return self.answer

    def save(self, capability: Any, request: Any) -> Any:
        raise NotImplementedError

    def restore(self, capability: Any, request: Any) -> Any:
        raise NotImplementedError

    def snapshot(self, capability: Any, request: Any) -> Any:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Side:
    """Everything that a rank has, in this process."""

    minter: Minter
    keys: KeyStore
    directory: Path

    def verifier(self) -> TokenVerifier:
        return TokenVerifier(KeySet(self.keys.jwks()), ISSUER)

    def token(self) -> str:
        """A rank's lease for the state layer, as it is in its bundle."""
        layer = STEP.layer
        return self.minter.mint(
            MintRequest(
                subject=f"rank:bench/{JOB}/{JOB}-0-0",
                audience=layer.audience,
                grants=tuple(Grant(op=op, res=RESOURCE) for op in RANK_LEASES[layer]),
                namespace="bench",
                job=JOB,
                job_uid=UID,
                attempt=ATTEMPT,
                lifetime_seconds=300,
                ranks="0-7",
                pod=f"{JOB}-0-0",
            )
        ).token

    def gate(self, log: OperationLog) -> Gate:
        gate = Gate("rank/0", self.verifier(), OneAttempt(), log)
        gate.register(Bare())
        return gate


def measure(quick: bool = False) -> list[Figure]:
    """All of it; some twenty seconds."""
    count, tokens, steps = (2_000, 100, 20) if quick else (50_000, 2_000, 150)
    with _side() as side:
        return [
            *_hit(side, count),
            *_miss(side, tokens),
            *_authorise(side, count),
            *_call(side, count),
            *_training(side, steps),
            *steplog.figures(quick),
        ]


@contextmanager
def _side() -> Iterator[Side]:
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        keys = KeyStore(directory / "keys", time.time)
        minter = Minter(keys, ISSUER, time.time, PolicyKeeper(directory / "policy", None, time.time))
        yield Side(minter, keys, directory)


def _hit(side: Side, count: int) -> list[Figure]:
    verifier, token = side.verifier(), side.token()
    verifier.verify(token, STEP.layer.audience)
    taken = _each(lambda: verifier.verify(token, STEP.layer.audience), count)
    return [
        _figure("verify, known token, median", statistics.median(taken), "us"),
        _figure("verify, known token, p99", percentile(taken, 99), "us", HIT_P99, f"{count} calls"),
    ]


def _miss(side: Side, count: int) -> list[Figure]:
    """First sight of a token, by turns with the library's check of the same signature."""
    verifier, ours, theirs = side.verifier(), [], []
    for token in [side.token() for _ in range(count)]:
        check = _bare_check(side, token)
        theirs.append(_cpu(check))
        ours.append(_cpu(partial(verifier.verify, token, STEP.layer.audience)))
    miss, bare = statistics.median(ours), statistics.median(theirs)
    more = miss - MISS_TIMES * bare
    return [
        _figure(f"Ed25519 check of {LIBRARY} alone, median", bare, "us"),
        _figure(
            "verify, new token, median", miss, "us", note=f"{miss / bare:.2f} times {LIBRARY}; {count} tokens, CPU time"
        ),
        _figure("verify, new token, p99", percentile(ours, 99), "us", note="CPU time"),
        _figure(f"verify, new token, beyond {MISS_TIMES} times {LIBRARY}", more, "us", MISS_MORE),
    ]


def _bare_check(side: Side, token: str) -> Callable[[], None]:
    head, _, signature = token.rpartition(".")
    key: Ed25519PublicKey = side.keys.signing_key()[1].public_key()
    raw, message = base64.urlsafe_b64decode(signature + "=="), head.encode()
    return lambda: key.verify(raw, message)


def _authorise(side: Side, count: int) -> list[Figure]:
    claims, _ = side.verifier().verify(side.token(), STEP.layer.audience)
    fence = OneAttempt()
    taken = _each(lambda: authorise(claims, STEP, RESOURCE, fence, BUILT_IN), count)
    return [
        _figure("authorise, median", statistics.median(taken), "us", AUTHORISE),
        _figure("authorise, p99", percentile(taken, 99), "us"),
    ]


def _call(side: Side, count: int) -> list[Figure]:
    """A step call in a tight loop: gate, operation log in a file, method that does nothing."""
    token, request = side.token(), SubmitGradients(step_id=1)
    with OperationLog() as log:
        log.keep_in(LogFile(side.directory / "tight", ATTEMPT, 0))
        gate = side.gate(log)
        taken = _each(lambda: gate.call_now(token, STEP.name, RESOURCE, request), count)
    return [
        _figure("step call through the gate, median", statistics.median(taken), "us"),
        _figure("step call through the gate, p99", percentile(taken, 99), "us"),
    ]


def _training(side: Side, steps: int) -> list[Figure]:
    """A step call where it is made: between real training steps, when nothing of it is in a cache any more.

    After one step the method is called through the gate, after the next directly, so both find the same cold caches.
    """
    token, layer, train = side.token(), Bare(), _trainer()
    through, direct, took = [], [], []
    with OperationLog() as log:
        log.keep_in(LogFile(side.directory / "training", ATTEMPT, 0))
        gate = side.gate(log)
        for step in range(steps):
            took.append(_timed(train))
            request = SubmitGradients(step_id=step + 1)
            if step % 2:
                through.append(_cpu(partial(gate.call_now, token, STEP.name, RESOURCE, request)))
            else:
                direct.append(_cpu(partial(layer.submit_gradients, None, request)))
    cost = statistics.median(through) - statistics.median(direct)
    step_us = statistics.median(took)
    share = 100 * cost / (STEP_SECONDS * 1e6)
    note = f"CPU time of {len(through)} calls between steps of {step_us / 1e3:.1f} ms"
    return [
        _figure("tokens and audit, per training step", cost, "us/step", note=note),
        _figure(f"the same, of a step of {STEP_SECONDS * 1e3:.0f} ms", share, "%", TRAINING),
    ]


def _trainer() -> Callable[[], object]:
    """One optimizer step of the benchmark's long workload, on one thread as in a rank."""
    torch.set_num_threads(1)
    task = workload("matrices")
    model = task.model()
    optimizer = task.optimizer(model.parameters())
    batch = tuple(torch.stack(part) for part in zip(*(task.dataset[i] for i in range(64)), strict=True))

    def train() -> object:
        optimizer.zero_grad()
        task.loss(model, batch).backward()
        return optimizer.step()

    train()
    return train


def _each(call: Callable[[], object], count: int) -> list[float]:
    """Microseconds of each call, after a warm-up."""
    for _ in range(min(count, 1_000)):
        call()
    gc.collect()
    return [_timed(call) for _ in range(count)]


def _cpu(call: Callable[[], object]) -> float:
    """Microseconds of CPU time of one call: for comparisons, which other programs should not decide."""
    start = time.thread_time_ns()
    call()
    return (time.thread_time_ns() - start) / 1e3


def _timed(call: Callable[[], object]) -> float:
    """Microseconds of one call by the clock."""
    start = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - start) / 1e3


def _figure(name: str, value: float, unit: str, target: float | None = None, note: str = "") -> Figure:
    return Figure("authority", name, round(value, 3), unit, Bound.AT_MOST, target, note)
