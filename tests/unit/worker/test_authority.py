"""The rank's gate: calls are verified and chained, what is refused is told, and no lease is outlived in silence."""

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kuangchao_contracts import errors as e
from kuangchao_contracts.oplog import OperationLog
from kuangchao_contracts.oplogcheck import LogLine, verify_oplog
from kuangchao_contracts.oplogfile import LogFile, part_name
from kuangchao_contracts.ports.state import SaveRequest, SnapshotRequest, SubmitGradients
from kuangchao_contracts.ports.topology import BuildRequest
from kuangchao_contracts.run import Empty
from kuangchao_contracts.tokens import parse_claims, parse_strict
from kuangchao_worker.layers.topology.service import TopologyService
from kuangchao_worker.pod.assignment import Assignment
from kuangchao_worker.pod.channel import NOTES_PER_MESSAGE, RankChannel, RankMessage
from kuangchao_worker.pod.revocations import REVOCATIONS, Revocations, write_revocations
from kuangchao_worker.pod.tokens import TokenFile
from kuangchao_worker.rank.authority import Authority
from kuangchao_worker.rank.reporting import GateReporter
from kuangchao_worker.tasks.mlp import mlp
from tests.unit.contracts.oplogs import denial
from tests.unit.worker.fakegate import Issuer
from tests.unit.worker.parts import assignment, make_state

READ = SnapshotRequest(want_digest=False)


class Rank:
    """The gate of a rank with a clock that a test moves, and the agent's end of its channel."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.folder, self.issuer = folder, Issuer()
        self.issuer.write_trust(folder / "trust")
        (folder / "token").mkdir()
        self.deliver(1)
        self.assigned: Assignment = assignment(folder).replace(**changes)
        self.now = self.start = time.time()
        self.log = OperationLog(clock_ns=lambda: int(self.now * 1e9))
        self.agent = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.agent.bind(str(folder / "m"))
        self.agent.setblocking(False)
        self.channel = RankChannel(str(folder / "m"), 0)
        self.reporter = GateReporter(self.channel, 0, 1, self.log, lambda: self.now)
        self.state = make_state(mlp({}), folder)
        self.authority = self.made()

    def made(self) -> Authority:
        """A gate that serves the state."""
        authority = Authority(self.assigned, self.log, self.reporter, lambda: self.now, lambda: self.now)
        authority.serve([self.state])
        return authority

    def deliver(self, attempt: int, issued: float | None = None) -> None:
        """Mount a new bundle."""
        bundle = self.issuer.bundle("pod-0", attempt, now=issued)
        (self.folder / "token" / "bundle.json").write_bytes(bundle.canonical())

    def call(self, after: float = 0.0) -> None:
        """A call so many seconds after the start."""
        self.now = self.start + after
        self.authority.call("state.snapshot", READ)

    def said(self) -> list[RankMessage]:
        """What the agent has heard since the last time."""
        heard = []
        while True:
            try:
                heard.append(RankMessage.model_validate_json(self.agent.recv(65_536)))
            except BlockingIOError:
                return heard

    def close(self) -> None:
        self.channel.close()
        self.agent.close()


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[Rank]:
    made = Rank(tmp_path)
    yield made
    made.close()


def test_calls_are_verified_and_chained(rank: Rank) -> None:
    start = rank.log.head
    rank.call()
    assert rank.log.count == 1
    assert rank.log.head != start
    assert rank.said() == [], "what is allowed is not worth a message"


def test_a_call_without_right_is_refused_and_told_at_once_with_its_count(rank: Rank) -> None:
    with pytest.raises(e.UnknownOperationError):
        rank.authority.call("execution.join", Empty())
    (message,) = rank.said()
    (note,) = message.notes
    assert (note.reason, note.op, note.count, note.allowed) == ("UnknownOperation", "execution.join", 2, False)
    assert (note.rank, note.attempt) == (0, 1)
    assert rank.log.count == 2


def test_what_was_half_done_is_not_done_again(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    """An optimizer that communicates has written already: a second try would find another fault than there was."""
    tried: list[str] = []

    def submit(*_: object) -> None:
        tried.append("submit")
        raise e.DirectCommunicationError("rank 0, step 1: mytask called torch.distributed.barrier")

    monkeypatch.setattr(rank.state, "submit_gradients", submit)
    rank.authority = rank.made()
    with pytest.raises(e.DirectCommunicationError):
        rank.authority.call("state.submit_gradients", SubmitGradients(step_id=1))
    ((note,),) = [message.notes for message in rank.said()]
    assert (tried, note.reason, note.count) == (["submit"], "DirectCommunication", 1)


def test_what_is_refused_before_any_call_is_told_with_its_subject(rank: Rank) -> None:
    """Code of a task that is run as it is imported."""
    rank.authority.refused("topology.build", e.DirectCommunicationError("called init_process_group"))
    ((note,),) = [message.notes for message in rank.said()]
    assert (note.reason, note.op) == ("DirectCommunication", "topology.build")
    assert note.subject.startswith("rank:")


def test_what_is_refused_without_any_token_is_told_too(rank: Rank) -> None:
    (rank.folder / "token" / "bundle.json").unlink()
    rank.authority.refused("topology.build", e.DirectCommunicationError("called init_process_group"))
    ((note,),) = [message.notes for message in rank.said()]
    assert (note.reason, note.subject) == ("DirectCommunication", "unverified")


def test_links_are_built_for_the_ranks_of_the_token_only(rank: Rank) -> None:
    """The tokens of the pod name ranks 0 to 63."""
    plan = rank.assigned.launch.plan
    rank.authority.serve([TopologyService("the hash of another plan", 1)])
    where = {"master_host": "127.0.0.1", "master_port": 1, "store_prefix": "p"}
    own, other = (BuildRequest(plan=plan, attempt=1, rank=number, **where) for number in (63, 64))
    with pytest.raises(e.ConflictError):
        rank.authority.call("topology.build", own)
    with pytest.raises(e.RankMismatchError):
        rank.authority.call("topology.build", other)
    (message,) = rank.said()
    assert [(note.reason, note.op) for note in message.notes] == [("RankMismatch", "topology.build")]


def test_notes_wait_for_an_agent_that_does_not_listen(rank: Rank, tmp_path: Path) -> None:
    rank.agent.close()
    (tmp_path / "m").unlink()
    for number in range(NOTES_PER_MESSAGE + 1):
        rank.log.step_denied(denial("Stale" + "ABCDEFGHIJ"[number]))
    rank.reporter.notes()
    rank.agent = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    rank.agent.bind(str(tmp_path / "m"))
    rank.agent.setblocking(False)
    rank.reporter.notes()
    assert sum(note.count for message in rank.said() for note in message.notes) == NOTES_PER_MESSAGE + 1
    rank.reporter.notes()
    assert rank.said() == []


def test_tokens_of_another_attempt_are_not_used(rank: Rank) -> None:
    rank.call()
    rank.deliver(2)
    rank.call(after=20)
    with pytest.raises(e.UnavailableError):
        Authority(rank.assigned, OperationLog(), rank.reporter).call("state.snapshot", READ)


# ---- leases that nobody renews


def test_an_outage_does_not_stop_training_but_is_told_and_has_an_end(rank: Rank) -> None:
    rank.call()
    rank.call(after=299)
    assert rank.said() == []
    for later in (301, 900, 3_600):
        rank.call(after=later)
    (message,) = rank.said()
    assert (message.lease_overdue, message.lease_overdue_seconds) == (True, None)
    with pytest.raises(e.ExpiredSignatureError):
        rank.call(after=300 + 3_600 + 10)
    over, *notes = rank.said()
    assert (over.lease_overdue, over.lease_overdue_seconds) == (False, 3_609)
    found = {note.reason: (note.count, note.allowed) for message in notes for note in message.notes}
    assert found == {"LeaseOverdue": (3, True), "ExpiredSignature": (2, False)}


def test_a_renewed_lease_ends_the_grace(rank: Rank) -> None:
    rank.call()
    rank.call(after=400)
    rank.deliver(1, issued=rank.start + 410)
    rank.call(after=420)
    begun, over, notes = rank.said()
    assert (begun.lease_overdue, over.lease_overdue, over.lease_overdue_seconds) == (True, False, 20)
    assert [(note.reason, note.count) for note in notes.notes] == [("LeaseOverdue", 1)]
    rank.call(after=430)
    assert rank.said() == []


def test_lines_written_in_grace_are_marked(rank: Rank, tmp_path: Path) -> None:
    rank.log.keep_in(LogFile(tmp_path / "oplog", 1, 0))
    for later in (0, 200, 302, 303):
        rank.call(after=later)
    rank.log.close()
    entries = map(json.loads, (tmp_path / "oplog" / part_name(1, 0)).read_text().splitlines())
    assert [entry.get("grace", False) for entry in entries] == [False, False, True, True]


def test_the_log_says_how_much_each_update_wrote_and_a_checkpoint_pins_that(rank: Rank, tmp_path: Path) -> None:
    """In the line after the call, which is that of the save at the latest."""
    rank.log.keep_in(LogFile(tmp_path / "oplog", 1, 0))
    for step in (1, 2):
        rank.authority.call("state.submit_gradients", SubmitGradients(step_id=step))
    rank.authority.call("state.save", SaveRequest(step=2, directory=str(tmp_path / "step-2.att-1.tmp")))
    pinned = rank.log.pin()
    rank.log.close()
    seen: list[LogLine] = []
    verify_oplog([tmp_path / "oplog" / part_name(1, 0)], [(pinned.count, pinned.head)], seen.append)
    elements = sum(p.numel() for p in mlp({}).model().parameters())
    assert [line.did for line in seen] == [None] + [f"norm 0 elements {elements}"] * 2


def test_without_grace_a_lease_ends_when_it_ends(tmp_path: Path) -> None:
    rank = Rank(tmp_path, lease_grace_seconds=0)
    rank.call()
    rank.call(after=299)
    with pytest.raises(e.ExpiredSignatureError):
        rank.call(after=310)
    assert not any(message.lease_overdue for message in rank.said())
    rank.close()


# ---- what was taken back


def test_a_revoked_token_is_refused_within_a_second_and_a_new_one_is_taken(rank: Rank, tmp_path: Path) -> None:
    rank.call()
    token = TokenFile(tmp_path / "token").read().tokens["rank/kc:state"]
    jti = parse_claims(parse_strict(token)[1]).jti
    write_revocations(tmp_path, Revocations(tokens=frozenset({jti})))
    with pytest.raises(e.RevokedTokenError):
        rank.call(after=1)
    rank.deliver(1)
    rank.call(after=2)
    told = [(note.reason, note.count) for message in rank.said() for note in message.notes]
    assert told == [("RevokedToken", 2), ("RevokedToken", 1)], "the third try is the old token's last"


def test_a_denied_key_is_refused_though_the_mounted_keys_do_not_say_so_yet(rank: Rank, tmp_path: Path) -> None:
    rank.call()
    write_revocations(tmp_path, Revocations(keys=frozenset({rank.issuer.entry.kid})))
    with pytest.raises(e.RevokedKeyError):
        rank.call(after=1)


def test_a_damaged_list_leaves_what_was_revoked_before(rank: Rank, tmp_path: Path) -> None:
    write_revocations(tmp_path, Revocations(keys=frozenset({rank.issuer.entry.kid})))
    with pytest.raises(e.RevokedKeyError):
        rank.call(after=1)
    (tmp_path / REVOCATIONS).write_text("{")
    with pytest.raises(e.RevokedKeyError):
        rank.call(after=2)
