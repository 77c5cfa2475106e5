"""The operation logs of one job, checked against what the audit store has pinned. Reads files only, trusts none.

A pinned line that is missing or changed is a problem. Lines after the last commit of an attempt are pinned by nothing:
they are declared lost, whatever they say.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from kuangchao_contracts.checkpoint import CheckpointManifest
from kuangchao_contracts.errors import StorageError
from kuangchao_contracts.gate import printable
from kuangchao_contracts.oplog import request_hash
from kuangchao_contracts.oplogcheck import LogBrokenError, LogLine, Pin, Verified, verify_oplog
from kuangchao_contracts.oplogfile import DIRECTORY, manifest_name, parse_name, parts
from kuangchao_contracts.ports.state import SubmitGradients
from kuangchao_contracts.ranges import from_ranges
from kuangchao_operator.audit.jobtrail import Commit

OWNER: Final = ".kuangchao-owner"
MANIFEST: Final = "manifest.json"
SUBMIT: Final = "state.submit_gradients"
SEARCHED_STEPS: Final = 10_000
"""Steps beyond the last commit among which the first step of a log is looked for, should no checkpoint tell it."""


@dataclass(slots=True)
class Segment:
    """Consecutive lines of one log, up to what a commit has pinned, or after the last one (`commit` None)."""

    attempt: int
    rank: int
    commit: Commit | None
    first: int = 0
    last: int = 0
    began: int = 0
    ended: int = 0
    """Nanoseconds since 1970, by the clock of the rank's machine."""
    first_step: int | None = None
    last_step: int | None = None
    operations: Counter[str] = field(default_factory=Counter)
    denied: int = 0
    grace: int = 0
    lines: list[tuple[LogLine, int | None]] = field(default_factory=list)
    """The lines with the step of each, if they are wanted one by one."""
    bound: int | None = None
    """Steps that the distance between checkpoints allows to be lost."""
    fault: str = ""

    def take(self, line: LogLine, step: int | None, *, keep: bool) -> None:
        """Add a line."""
        self.first, self.last = self.first or line.n, line.n
        self.began, self.ended = self.began or line.t, line.t
        self.operations[line.op] += 1
        self.denied += line.deny is not None
        self.grace += line.grace
        if step is not None:
            self.first_step, self.last_step = self.first_step or step, step
        if keep:
            self.lines.append((line, step))


@dataclass(slots=True)
class JobLogs:
    """What the logs say, and what is wrong with them."""

    segments: list[Segment] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def read_logs(folders: Sequence[Path], commits: Sequence[Commit], *, lines: bool = False) -> JobLogs:
    """Check all logs of a job. `folders`: its checkpoint directory, and others that hold logs."""
    return _Reader(folders, commits, lines).read()


def job_folders(given: Path, uid: str) -> list[Path]:
    """The job's directory: the given one, or the one below it that bears the job's mark. Raises StorageError."""
    if not given.is_dir():
        raise StorageError(f"{given} is no directory")
    owned = [path.parent for path in (given / OWNER, *sorted(given.glob(f"*/{OWNER}"))) if path.is_file()]
    own = [folder for folder in owned if (folder / OWNER).read_text("utf-8", "replace").split(" ")[0].strip() == uid]
    if not own and owned:
        raise StorageError(f"{given} holds no directory of a job with uid {uid}")
    return own or [given]


class _Reader:
    def __init__(self, folders: Sequence[Path], commits: Sequence[Commit], lines: bool) -> None:
        self._folders, self._commits, self._lines = folders, commits, lines
        self._found = JobLogs()
        self._manifests = {commit.manifest: self._manifest(commit) for commit in commits}
        self._bound = next((m.every_steps for m in reversed(self._manifests.values()) if m is not None), None)

    def read(self) -> JobLogs:
        """Everything, attempt by attempt."""
        for attempt in sorted({*(c.attempt for c in self._commits), *self._on_disk()}):
            self._attempt(attempt, [commit for commit in self._commits if commit.attempt == attempt])
        for folder in self._folders:
            for path in sorted((folder / DIRECTORY).glob("*.found-*")):
                self._found.notes.append(
                    f"{printable(path.name, 255)} was there before its rank wrote its log; it is nobody's word"
                )
        return self._found

    def _attempt(self, attempt: int, commits: list[Commit]) -> None:
        pins: dict[int, list[tuple[Commit, Pin]]] = {}
        unknown: list[Commit] = []
        for commit in commits:
            heads = self._pins(commit)
            if heads is None:
                unknown.append(commit)
            for rank, pin in (heads or {}).items():
                pins.setdefault(rank, []).append((commit, pin))
        self._say_unknown(attempt, unknown, commits)
        unkept = self._without_file(commits)
        for rank in sorted({*pins, *self._on_disk().get(attempt, ())} - unkept):
            self._rank(attempt, rank, pins.get(rank, []))

    def _rank(self, attempt: int, rank: int, pinned: list[tuple[Commit, Pin]]) -> None:
        files = next((found for f in self._folders if (found := parts(f / DIRECTORY, attempt, rank))), [])
        segments = [Segment(attempt, rank, commit) for commit, _ in pinned]
        tail = Segment(attempt, rank, None, bound=self._bound)
        ends = [pin[0] for _, pin in pinned]
        steps = _Steps([c.step for c in self._commits])

        def see(line: LogLine) -> None:
            at = next((i for i, end in enumerate(ends) if line.n <= end), None)
            (segments[at] if at is not None else tail).take(line, steps.of(line), keep=self._lines)

        try:
            verified = verify_oplog(files, [pin for _, pin in pinned], see)
        except LogBrokenError as error:
            self._found.problems.append(f"operation log of rank {rank}, attempt {attempt}: {error}")
            return
        except OSError as error:
            raise StorageError(f"operation log of rank {rank}, attempt {attempt}: {error.strerror}") from None
        self._found.segments += [segment for segment in segments if segment.first]
        self._tail(tail, verified)

    def _tail(self, tail: Segment, verified: Verified) -> None:
        tail.fault = verified.fault
        if verified.fault and not verified.torn:
            where = f"operation log of rank {tail.rank}, attempt {tail.attempt}"
            self._found.problems.append(f"{where}, after the last commit: {verified.fault}")
        if tail.first or tail.fault:
            self._found.segments.append(tail)

    def _pins(self, commit: Commit) -> dict[int, Pin] | None:
        if commit.pins is not None:
            return commit.pins
        manifest = self._manifests[commit.manifest]
        if manifest is None or manifest.oplogs is None:
            return None
        split = ((int(rank), text.partition(":")) for rank, text in manifest.oplogs.items())
        return {rank: (int(count), head) for rank, (count, _, head) in split}

    def _say_unknown(self, attempt: int, unknown: list[Commit], commits: list[Commit]) -> None:
        if not unknown:
            return
        steps = ", ".join(str(commit.step) for commit in unknown)
        if unknown[-1] is commits[-1]:
            self._found.problems.append(
                f"attempt {attempt}: the manifest of step {commits[-1].step} is missing, and with it the logs' heads"
            )
        else:
            # the chain runs on, so the next head that is known pins these lines as well
            self._found.notes.append(f"attempt {attempt}: steps {steps} were pruned; later heads pin the same lines")

    def _without_file(self, commits: list[Commit]) -> set[int]:
        newest = next((m for c in reversed(commits) if (m := self._manifests[c.manifest]) is not None), None)
        text = newest.oplogs_without_file if newest is not None else None
        if text:
            self._found.notes.append(
                f"attempt {commits[0].attempt}: ranks {text} keep head and count only, by setting or for want of a file"
            )
        return set(from_ranges(text or ""))

    def _manifest(self, commit: Commit) -> CheckpointManifest | None:
        """The manifest that was committed, from wherever it lies by now."""
        name = f"step-{commit.step}.att-{commit.attempt}"
        places = (f"{name}/{MANIFEST}", f"{name}.bad/{MANIFEST}", f"{DIRECTORY}/{manifest_name(commit.attempt)}")
        for path in (folder / place for folder in self._folders for place in places):
            if path.is_file() and hashlib.sha256(raw := path.read_bytes()).hexdigest() == commit.manifest:
                try:
                    return CheckpointManifest.model_validate_json(raw)
                except ValidationError:
                    self._found.notes.append(f"{path.parent.name}/{path.name} is of another release")
        return None

    def _on_disk(self) -> dict[int, set[int]]:
        """Attempts and ranks of which there are logs."""
        found: dict[int, set[int]] = {}
        for name in _names(self._folders):
            parsed = parse_name(name)
            if parsed is not None:
                found.setdefault(parsed[0], set()).add(parsed[1])
        return found


def _names(folders: Iterable[Path]) -> list[str]:
    return [path.name for folder in folders for path in (folder / DIRECTORY).glob("att-*.rank-*")]


class _Steps:
    """Tells the step of a line by the hash of its request. Steps follow each other, so one try is mostly enough."""

    def __init__(self, saved: Sequence[int]) -> None:
        # an attempt begins after a step that was saved or, once, at the first
        first = [1, *(step + 1 for step in saved)]
        self._candidates: Iterable[int] = (*first, *range(2, max(first) + SEARCHED_STEPS))

    def of(self, line: LogLine) -> int | None:
        """The step that the line is about, None when it is about none, or about one that is not told from here."""
        if line.op != SUBMIT or line.req is None:
            return None
        step = next((n for n in self._candidates if request_hash(SubmitGradients(step_id=n)) == line.req), None)
        # a step that is refused may be asked for again
        self._candidates = (step + 1, step) if step is not None else ()
        return step
