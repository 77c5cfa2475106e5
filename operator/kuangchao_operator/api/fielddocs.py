"""What `kubectl explain` says of the fields that people write, by path; docs/manifest.md says more. Build time only.

An object whose model says what it is needs no entry, nor do fields that only the operator writes.
"""

from typing import Final

from kuangchao_operator.api.structural import Schema

_MODEL: Final = {
    "": "Sizes for the memory estimate, as `kuangchao describe-model` prints them; without it memory is not checked.",
    "kind": "measured: sizes alone are known; transformer: its layers are.",
    "name": "For people.",
    "parameters": "How many it has (measured).",
    "trainableParameters": "How many of them have gradients; all unless given (measured).",
    "bufferBytes": "Bytes of what is neither a parameter nor an activation (measured).",
    "activationBytesPerSample": "Bytes that a sample keeps for the backward pass (measured).",
    "layers": "How many decoder layers there are.",
    "hidden": "Features of a token between layers.",
    "heads": "Attention heads.",
    "kvHeads": "Heads of keys and values; as many as heads unless given.",
    "headDim": "Features of a head; hidden / heads unless given.",
    "ffn": "Inner features of a feed-forward layer.",
    "vocab": "Tokens of the vocabulary.",
    "gatedFfn": "Whether feed-forward layers have a gate, so three matrices in place of two.",
    "tiedEmbeddings": "Whether the output layer has the weights of the token embedding.",
    "learnedPositions": "Positions of a learned table; 0: none.",
    "maxSequence": "Most tokens of a sample that the model takes.",
    "experts.count": "Experts of a layer.",
    "experts.perToken": "Experts that a token goes to.",
    "experts.ffn": "Inner features of an expert.",
    "experts.sharedFfn": "Inner features of the experts that every token goes to, together; 0: none.",
    "experts.denseLayers": "First layers that have a plain feed-forward layer instead.",
    "experts.every": "One of so many layers has experts.",
    "latentAttention.queryRank": "Rank of the queries' projection; not projected unless given.",
    "latentAttention.kvRank": "Rank of the projection of keys and values.",
    "latentAttention.nopeDim": "Features of a head without positions.",
    "latentAttention.ropeDim": "Features of a head with rotary positions.",
    "latentAttention.valueDim": "Features of a head's values.",
    "adapter.rank": "Rank of the low-rank matrices.",
    "adapter.attentionOnly": "Whether feed-forward layers have none.",
    "frozenLayers": "First layers that are not trained.",
}
_PARALLELISM: Final = {
    "tensor": "Ranks that divide each layer's matrices.",
    "pipeline": "Stages of layers, each on ranks of its own.",
    "data": "Ranks, or groups of them, that train on samples of their own.",
    "context": "Ranks that divide the tokens of each sample.",
    "expert": "Ranks that divide the experts of a layer, among those of data.",
    "microBatch": "Samples of a data rank that go through the model at once.",
    "virtualStages": "Stages on each pipeline rank.",
    "sequence": "Whether tensor ranks also divide the tokens between their matrices.",
    "stageLayers": "Layers of each stage, in the order in which a micro-batch visits them.",
    "taskRules": "Ways to split a model for which the task has rules, so that the planner may use them unasked.",
}
_TEMPLATE: Final = {
    "image": "Container image of the workers; the chart's unless given.",
    "imagePullPolicy": "As in core/v1 Container.",
    "imagePullSecrets": "Secrets of the job's namespace for pulling the image.",
    "imagePullSecrets[].name": "Name of the Secret.",
    "env": "Environment variables of the training container.",
    "env[].name": "Name of the variable.",
    "env[].value": "Its value.",
    "env[].valueFrom": "As in core/v1 EnvVar.",
    "resources.requests": "Requests by resource, beside those that the devices imply.",
    "resources.limits": "Limits by resource, beside those that the devices imply.",
    "volumes": "As in core/v1 Volume.",
    "volumeMounts": "Where volumes are mounted in the training container.",
    "volumeMounts[].name": "Name of the volume.",
    "volumeMounts[].mountPath": "Absolute path in the container.",
    "volumeMounts[].subPath": "Path within the volume; its root unless given.",
    "volumeMounts[].readOnly": "Whether it cannot be written to.",
    "tolerations": "Taints of nodes on which pods may run all the same.",
    "tolerations[].key": "Key of the taint; any unless given.",
    "tolerations[].operator": "Whether a taint's value must be equal, or only its key be there.",
    "tolerations[].value": "Value of the taint.",
    "tolerations[].effect": "Effect of the taint; any unless given.",
    "tolerations[].tolerationSeconds": "How long a NoExecute taint is borne; for ever unless given.",
    "labels": "Further labels of the pods.",
    "terminationGracePeriodSeconds": "As in core/v1 PodSpec.",
}
_JOB: Final = {
    "pool": "Name of the ResourcePool. Cannot change.",
    "task": "`module:function` that gives the task. Cannot change. Either this or command.",
    "taskArgs": "Texts by name that the function is given.",
    "command": "What follows `torchrun`: script and arguments, one process a rank. Either this or task.",
    "plugins": "What is put between algorithm and state; there is room for one. Needs task.",
    "plugins[].name": "Name of its entry point in group kuangchao.plugins.",
    "plugins[].options": "What it is told, texts by name.",
    "training.globalBatch": "Samples of one step over all ranks; no plan changes it.",
    "training.sequenceLength": "Tokens of a sample; needed with a model of kind transformer.",
    "training.steps": "Steps of a task in the whole job; a command ends when it ends.",
    "training.seed": "Of first weights, the order of samples and dropout.",
    "devices.count": "Ranks of the job, each with a device: all of them or none.",
    "devices.perPod": "Ranks that share a pod.",
    "devices.min": "Least ranks of an elastic job; checked and kept, no job changes its size by itself yet.",
    "devices.max": "Most ranks of an elastic job; checked and kept, no job changes its size by itself yet.",
    "checkpoint.everySteps": "Steps between two checkpoints of a task.",
    "checkpoint.everyMinutes": "Minutes between two checkpoints of a task.",
    "checkpoint.keep": "Newest checkpoints that stay.",
    "checkpoint.storage.claimName": "PersistentVolumeClaim of the job's namespace.",
    "checkpoint.storage.path": "Directory on it; one of the job's own unless given.",
    "fault.maxRestarts": "Restarts for faults of the task; those of the platform do not count.",
    "fault.hangSeconds": "Time without a step that is a hang.",
    "fault.firstStepSeconds": "Time before the first step that is a hang.",
    "fault.nodeLostSeconds": "Silence of a node after which it is lost.",
    "fault.terminationSeconds": "Time to save when the job is ended.",
    "channels": "Shares of a node's bandwidth; checked and kept, nothing enforces them yet.",
    "channels[].name": "Name of the channel.",
    "channels[].quotaPercent": "Its share; of all together 100 at most.",
    "access.owner": "Who may change and delete the job, and say who else may; without one RBAC alone decides.",
    "access.collaborators": "Who may change it, but not say who else may.",
    "access.viewers": "For whom it is meant; what a person sees is RBAC's alone.",
    "suspend": "True ends the pods, after a checkpoint, and gives all devices back; false goes on from there.",
    "retryGeneration": "Raise it to start a failed job once more; can only rise.",
    "managedBy": "Another controller; ours then leaves the job alone. Cannot change.",
    "ttlSecondsAfterFinished": "When an ended job is deleted; never unless given.",
    "activeDeadlineSeconds": "Most time for the job, from its first running rank since it was resumed.",
    "startDeadlineSeconds": "Most time for its pods to start.",
    "podOverrides": "Anything else of a pod, by its own fields (metadata, spec), merged in.",
    **{f"model.{name}".rstrip("."): text for name, text in _MODEL.items()},
    **{f"parallelism.{name}": text for name, text in _PARALLELISM.items()},
    **{f"template.{name}": text for name, text in _TEMPLATE.items()},
}
_POOL: Final = {
    "nodeSelector": "Labels of the nodes that belong to it; all nodes with such devices unless given.",
    "cpuPerDevice": "Cores of a CPU device.",
    "memoryPerDevice": "Main memory of a CPU device; its share of the node's unless given.",
    "quota": "Most devices that its jobs may hold together; all unless given.",
    "debugSharePercent": "Most of its devices that jobs of priority debug may hold together.",
    "bandwidthPerNode": "Bandwidth of a node; checked and kept, nothing reads it yet.",
    "health.maxTemperatureCelsius": "A device that is hotter does not count.",
    "health.maxUncorrectableEcc": "A device with more uncorrectable memory errors does not count.",
}
SPECS: Final = {"trainingjobs": _JOB, "resourcepools": _POOL}


def describe(spec: Schema, texts: dict[str, str]) -> None:
    """Put the texts where they belong. Raises KeyError for a path that is no field."""
    for path, text in texts.items():
        at = spec
        for name in path.split("."):
            at = at["properties"][name.removesuffix("[]")]
            at = at["items"] if name.endswith("[]") else at
        at["description"] = text
