"""What is in use beside states and activations: logits, whole parameters under full sharding, communication. Pure."""

from kuangchao_contracts.plan import Sharding
from kuangchao_operator.layers.strategy.footprint.activations import hidden_bytes
from kuangchao_operator.layers.strategy.footprint.calibration import Backend
from kuangchao_operator.layers.strategy.footprint.parameters import heads
from kuangchao_operator.layers.strategy.footprint.setting import Setting
from kuangchao_operator.layers.strategy.footprint.stages import Stage, padded_vocab
from kuangchao_operator.layers.strategy.footprint.states import SHARDS_GRADIENTS, divided, on_rank, parameter_cost


def loss_bytes(stage: Stage, setting: Setting, backend: Backend) -> int:
    """Logits with all that the loss makes of them at once, and the inputs of final norm and output layer."""
    if not stage.has_head:
        return 0
    vocab = padded_vocab(setting, backend)
    divided = setting.layout.tokens_divided if setting.layout.vocab_whole else setting.layout.tensor
    divided = 1 if setting.logits_joined else divided
    logits = -(-setting.tokens * vocab * backend.logit_bytes[setting.loss] // divided)
    return logits + 2 * hidden_bytes(setting, backend)


def gathered_bytes(stage: Stage, setting: Setting, backend: Backend, *, at_loss: bool) -> int:
    """Parameters that are whole for a while under full sharding: the output layer at the loss, then layers."""
    if setting.sharding is not Sharding.FULL or backend.gathered_bytes == 0:
        return 0
    if setting.layout.pipeline > 1 and backend.keeps_gathered_in_pipeline:
        return on_rank(stage.held, setting).total * backend.gathered_bytes
    layer = on_rank(stage.largest, setting).total
    live = min(on_rank(stage.held, setting).total, backend.live_parameters)
    if not at_loss:
        return max(layer * backend.gathered_layers, live) * backend.gathered_bytes
    end = stage.end.total if setting.layout.vocab_whole else on_rank(stage.end, setting).total
    return max(layer * backend.gathered_at_loss + end, live) * backend.gathered_bytes


def reduced_bytes(stage: Stage, setting: Setting, backend: Backend) -> int:
    """Gradients that are whole while they are reduced, or until the last micro-batch where they accumulate."""
    if setting.sharding is Sharding.NONE:
        return 0
    trained = on_rank(stage.trained, setting).total
    if accumulates(setting, backend):
        return trained * backend.accumulated_bytes
    unit = min(trained, on_rank(stage.largest, setting).total * backend.reduced_layers)
    if setting.sharding is not Sharding.GRADIENTS:
        return unit * backend.reduced_bytes
    # a micro-batch's shard, before it is added to that of those before it
    return unit * backend.reduced_bytes + -(-unit * backend.accumulated_bytes // setting.layout.dense_shards)


def accumulates(setting: Setting, backend: Backend) -> bool:
    """Whether gradients that end up sharded are whole between micro-batches.

    Those that are sharded alone are reduced with each one, but in a pipeline with the last.
    """
    reduced_each = setting.sharding is Sharding.GRADIENTS and setting.layout.pipeline == 1
    several = setting.micro_batches > 1 and backend.accumulated_bytes > 0
    return several and setting.sharding in SHARDS_GRADIENTS and not reduced_each


def shard_bytes(stage: Stage, setting: Setting, backend: Backend) -> int:
    """What a rank updates of the parameters, where FSDP keeps them whole beside it."""
    if not _beside(setting, backend):
        return 0
    each = parameter_cost(backend.states[setting.precision], setting)
    return divided(on_rank(stage.held, setting), each, setting, shard=True)


def _beside(setting: Setting, backend: Backend) -> bool:
    """Whether FSDP shards what belongs to the parameters, and not these."""
    stage = setting.sharding in (Sharding.OPTIMIZER, Sharding.GRADIENTS)
    return stage and backend.reduced_bytes > 0 and setting.layout.dense_shards > 1


def bucket_bytes(gradients: int, setting: Setting, backend: Backend) -> int:
    """Buckets of the reduction that hold the gradients once more, where there is more than one rank to reduce over.

    Where FSDP shards no more than gradients, it reduces them unit by unit instead. Where our workers
    divide nothing but data, gradients lie in DDP's buckets; those of earlier micro-batches stand beside them.
    """
    if setting.layout.replicas == 1 or _beside(setting, backend):
        return 0
    again = 0 if _in_buckets(setting) else backend.bucket_permille
    return backend.bucket_bytes + gradients * again // 1000


def _in_buckets(setting: Setting) -> bool:
    layout = setting.layout
    divided = layout.tensor * layout.pipeline * layout.context * layout.expert > 1
    by_ddp = setting.sharding is Sharding.NONE and not divided
    return by_ddp and not setting.plain_ddp and setting.micro_batches == 1


def communication_bytes(setting: Setting, backend: Backend) -> int:
    """Buffers of the other axes: hidden states between stages and over tensor ranks, keys and values, tokens."""
    layout, element = setting.layout, backend.element[setting.precision]
    hidden = hidden_bytes(setting, backend)
    total = 2 * hidden if layout.pipeline > 1 else 0
    if layout.sequence and layout.tensor > 1:
        total += hidden * layout.tensor * backend.sequence_buffers
    if layout.context > 1:
        width = heads(setting.model)
        tokens = setting.tokens * (layout.context if backend.gathers_keys else 1)
        total += -(-2 * tokens * (width.key + width.value) * element // layout.tensor)
    if setting.model.experts is not None and layout.expert > 1:
        total += 2 * hidden * setting.model.experts.per_token
    return total
