"""The passes of a step and the messages between stages that they make necessary, by number. Pure."""

from typing import NamedTuple

from kuangchao_operator.layers.strategy.schedule.passes import WORDS, Kind, Orders, Pass, Placement
from kuangchao_operator.layers.strategy.schedule.waits import DeadlockError


class Work(NamedTuple):
    """A pass, and the stage that runs it."""

    stage: int
    step: Pass


class Message(NamedTuple):
    """The output of a pass on its way: hidden states after a forward pass, their gradients after a backward pass."""

    kind: Kind
    micro_batch: int
    piece: int
    """The piece whose pass made it."""
    source: int
    target: int


class Key(NamedTuple):
    """What no two passes of a step have in common."""

    kind: Kind
    micro_batch: int
    piece: int


class Events:
    """Passes, row by row of the orders, then messages."""

    def __init__(self, placement: Placement) -> None:
        self.placement = placement
        self.all: list[Work | Message] = []
        self.rows: list[range] = []
        """Numbers of the passes of each stage."""
        self.input: dict[int, int] = {}
        """By pass: the message that it waits for."""
        self.output: dict[int, int] = {}
        """By pass: the message that it makes."""
        self.out_of_order: list[tuple[int, int, int]] = []
        """Passes of one stage that stand before what they need: needed, needing, stage."""

    def message(self, number: int) -> Message:
        """The message of a number."""
        found = self.all[number]
        assert isinstance(found, Message), "numbers in input and output are those of messages"
        return found

    def does(self, number: int, stage: int) -> str:
        """What an event is for a stage, as a sentence."""
        found = self.all[number]
        if isinstance(found, Message):
            return self.passes_on(found, stage)
        kind, batch, chunk = found.step
        part = f" of chunk {chunk}" if self.placement.virtual > 1 else ""
        return f"stage {stage} runs the {WORDS[kind]} pass of micro-batch {batch}{part}"

    def passes_on(self, message: Message, stage: int) -> str:
        """What a message is for one of the two stages."""
        goods = "activations" if message.kind is Kind.FORWARD else "gradients"
        part = f" out of piece {message.piece}" if self.placement.virtual > 1 else ""
        if stage == message.source:
            way = f"to stage {message.target}"
        else:
            way = f"from stage {message.source}"
        verb = "sends" if stage == message.source else "receives"
        return f"stage {stage} {verb} the {goods} of micro-batch {message.micro_batch}{part} {way}"


def collect(orders: Orders, placement: Placement) -> Events:
    """Passes of all stages and what passes between them. Raises DeadlockError for what is sent or awaited in vain."""
    events, numbers = Events(placement), dict[Key, int]()
    for stage, row in enumerate(orders):
        events.rows.append(range(len(events.all), len(events.all) + len(row)))
        for step in row:
            numbers[Key(step.kind, step.micro_batch, placement.piece(stage, step.chunk))] = len(events.all)
            events.all.append(Work(stage, step))
    for key, number in numbers.items():
        for need in _needs(key, placement.pieces):
            _connect(events, numbers, need, key, number)
        _used(events, numbers, key)
    return events


def _needs(key: Key, pieces: int) -> tuple[Key, ...]:
    """The passes whose output a pass takes."""
    kind, batch, piece = key
    if kind is Kind.FORWARD:
        return (Key(kind, batch, piece - 1),) if piece else ()
    if kind is Kind.WEIGHT:
        return (Key(Kind.BACKWARD, batch, piece),)
    own = Key(Kind.FORWARD, batch, piece)
    return (own,) if piece == pieces - 1 else (Key(kind, batch, piece + 1), own)


def _connect(events: Events, numbers: dict[Key, int], need: Key, key: Key, number: int) -> None:
    source, target = events.placement.stage(need.piece), events.placement.stage(key.piece)
    maker = numbers.get(need)
    if source != target:
        message = Message(need.kind, need.micro_batch, need.piece, source, target)
        if maker is None:
            why = "never sends them" if events.rows[source] else "has nothing to do"
            raise DeadlockError([f"{events.passes_on(message, target)}, which {why}"])
        events.output[maker] = events.input[number] = len(events.all)
        events.all.append(message)
    elif maker is None:
        wanted = f"the {WORDS[need.kind]} pass of micro-batch {need.micro_batch}"
        raise DeadlockError([f"{events.does(number, target)} after {wanted}, which never runs"])
    elif maker > number:
        events.out_of_order.append((maker, number, target))


def _used(events: Events, numbers: dict[Key, int], key: Key) -> None:
    """A message that nobody receives blocks its sender."""
    step = {Kind.FORWARD: 1, Kind.BACKWARD: -1, Kind.WEIGHT: 0}[key.kind]
    user = Key(key.kind, key.micro_batch, key.piece + step)
    if user in numbers or not 0 <= user.piece < events.placement.pieces:
        return
    source, target = events.placement.stage(key.piece), events.placement.stage(user.piece)
    why = "never receives them" if events.rows[target] else "has nothing to do"
    message = Message(key.kind, key.micro_batch, key.piece, source, target)
    raise DeadlockError([f"{events.passes_on(message, source)}, which {why}"])
