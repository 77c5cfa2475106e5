"""The operation logs of one job, checked against what the audit store has pinned. Reads files only, trusts none.

A pinned line that is missing or changed is a problem. Lines after the last commit of an attempt are pinned by nothing:
they are declared lost, whatever they say.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from kuangchao_contracts.checkpoint import CheckpointManifest
from kuangchao_contracts.errors import StorageError
from kuangchao_contracts.oplog import request_hash
from kuangchao_contracts.oplogcheck import LogBrokenError, LogLine, Pin, Verified, verify_oplog
from kuangchao_contracts.oplogfile import DIRECTORY, manifest_name, parse_name, parts
from kuangchao_contracts.ports.state import SubmitGradients
from kuangchao_contracts.ranges import from_ranges
from kuangchao_contracts.text import recordable
from kuangchao_operator.audit.jobtrail import Commit

OWNER: Final = ".kuangchao-owner"
MANIFEST: Final = "manifest.json"
MAX_MARK: Final = 1_024
MAX_MANIFEST: Final = 8 * 1024 * 1024
"""No larger one came through the gate. Files here are whatever somebody put there."""
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
    own = [folder for folder in owned if _owner(folder) == uid]
    if not own and owned:
        raise StorageError(f"{given} holds no directory of a job with uid {uid}")
    return own or [given]


def _owner(folder: Path) -> str:
    """Uid of the job that the mark names."""
    with (folder / OWNER).open("rb") as file:
        return file.read(MAX_MARK).decode("utf-8", "replace").split(" ")[0].strip()


@dataclass(slots=True)
class _Log:
    """One log as read: by the commits that pin it, and what follows them."""

    attempt: int
    rank: int
    pinned: InitVar[list[tuple[Commit, Pin]]]
    bound: InitVar[int | None]
    segments: list[Segment] = field(init=False)
    tail: Segment = field(init=False)
    verified: Verified | None = None
    broken: str = ""
    """Why it is not the log that was pinned."""

    def __post_init__(self, pinned: list[tuple[Commit, Pin]], bound: int | None) -> None:
        self.segments = [Segment(self.attempt, self.rank, commit) for commit, _ in pinned]
        self.tail = Segment(self.attempt, self.rank, None, bound=bound)

    @property
    def name(self) -> str:
        """How people are told of it."""
        return f"operation log of rank {self.rank}, attempt {self.attempt}"

    @property
    def doubt(self) -> int:
        """The less, the better it fits what was pinned."""
        if self.verified is None:
            return 2
        return int(bool(self.verified.fault) and not self.verified.torn)


class _Reader:
    def __init__(self, folders: Sequence[Path], commits: Sequence[Commit], lines: bool) -> None:
        self._folders, self._commits, self._lines = folders, commits, lines
        self._found = JobLogs()
        self._rivals = [folder for folder in folders if (folder / OWNER).is_file()][1:]
        self._manifests = {commit.manifest: self._manifest(commit) for commit in commits}
        self._bound = next((m.every_steps for m in reversed(self._manifests.values()) if m is not None), None)

    def read(self) -> JobLogs:
        """Everything, attempt by attempt."""
        for attempt in sorted({*(c.attempt for c in self._commits), *self._on_disk()}):
            self._attempt(attempt, [commit for commit in self._commits if commit.attempt == attempt])
        if self._rivals:
            marked = ", ".join(recordable(folder.name, 255) for folder in self._folders if (folder / OWNER).is_file())
            self._found.notes.append(f"several directories say that they are the job's, one of them rightly: {marked}")
        for folder in self._folders:
            for path in sorted((folder / DIRECTORY).glob("*.found-*")):
                self._found.notes.append(
                    f"{recordable(path.name, 255)} was there before its rank wrote its log; it is nobody's word"
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
        """Read the log, or of several the one that fits best: anybody with the volume can put another beside it."""
        found = [files for f in self._folders if (files := parts(f / DIRECTORY, attempt, rank))] or [[]]
        read = [self._log(files, attempt, rank, pinned) for files in found]
        best = min(read, key=lambda log: log.doubt)
        if len(found) > 1:
            self._found.notes.append(f"{best.name}: there are {len(found)}, and the one that fits best was read")
        if best.broken:
            self._found.problems.append(f"{best.name}: {best.broken}")
            return
        self._found.segments += [segment for segment in best.segments if segment.first]
        self._tail(best)

    def _log(self, files: list[Path], attempt: int, rank: int, pinned: list[tuple[Commit, Pin]]) -> "_Log":
        log = _Log(attempt, rank, pinned, self._bound)
        ends, steps = [pin[0] for _, pin in pinned], _Steps([c.step for c in self._commits])

        def see(line: LogLine) -> None:
            at = next((i for i, end in enumerate(ends) if line.n <= end), None)
            (log.segments[at] if at is not None else log.tail).take(line, steps.of(line), keep=self._lines)

        try:
            log.verified = verify_oplog(files, [pin for _, pin in pinned], see)
        except LogBrokenError as error:
            log.broken = str(error)
        except OSError as error:
            raise StorageError(f"{log.name}: {error.strerror}") from None
        return log

    def _tail(self, log: "_Log") -> None:
        tail, verified = log.tail, log.verified
        assert verified is not None, "it is not broken"
        tail.fault = verified.fault
        if verified.fault and not verified.torn:
            # where others claim to be the job's directory, what nothing pins may be theirs
            said = self._found.notes if self._rivals else self._found.problems
            said.append(f"{log.name}, after the last commit: {verified.fault}")
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
            if not path.is_file() or path.stat().st_size > MAX_MANIFEST:
                continue
            if hashlib.sha256(raw := path.read_bytes()).hexdigest() == commit.manifest:
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
