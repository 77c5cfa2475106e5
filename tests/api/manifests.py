"""Objects that set every field of their kind to something legal, so that each bound can be overstepped by itself."""

from typing import Any

Object = dict[str, Any]
DIGEST = "a" * 64


def minimal(**spec: Any) -> Object:
    """The least that a TrainingJob needs, with spec fields added; None removes one."""
    merged = {"pool": "cpu", "task": "tasks:train", "devices": {"count": 8}} | spec
    return {
        "apiVersion": "kuangchao.io/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "job"},
        "spec": {key: value for key, value in merged.items() if value is not None},
    }


def _shared_spec() -> Object:
    return {
        "pool": "cpu",
        "priority": "debug",
        "training": {
            "globalBatch": 64, "sequenceLength": 128, "precision": "bf16", "optimizer": "adam", "steps": 10, "seed": 7,
        },
        "devices": {"count": 8, "perPod": 2, "type": "cpu", "min": 2, "max": 16},
        "parallelism": {
            "mode": "Auto", "tensor": 2, "pipeline": 2, "data": 2, "context": 1, "expert": 1, "microBatch": 1,
            "virtualStages": 1, "sequence": False, "recompute": "none", "sharding": "none", "schedule": "1f1b",
            "stageLayers": [1, 1], "objective": "time",
        },
        "checkpoint": {
            "everySteps": 5, "everyMinutes": 1, "keep": 3, "storage": {"claimName": "checkpoints", "path": "runs/one"},
        },
        "fault": {
            "maxRestarts": 1, "onRestartLimit": "Fail", "onHang": "Observe", "hangSeconds": 10, "firstStepSeconds": 10,
            "nodeLostSeconds": 10, "terminationSeconds": 10,
        },
        "channels": [{"name": "gradients", "quotaPercent": 60}],
        "access": {"owner": "ann", "collaborators": ["ben"], "viewers": ["cem"]},
        "suspend": True,
        "retryGeneration": 1,
        "managedBy": "example.com/other",
        "ttlSecondsAfterFinished": 60,
        "activeDeadlineSeconds": 3600,
        "startDeadlineSeconds": 60,
        "successPolicy": "Rank0",
        "template": {
            "image": "example:1", "imagePullPolicy": "IfNotPresent", "imagePullSecrets": [{"name": "pull"}],
            "env": [{"name": "A", "value": "b", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
            "resources": {"requests": {"memory": "1Gi"}, "limits": {"memory": "2Gi"}},
            "volumes": [{"name": "scratch", "emptyDir": {}}],
            "volumeMounts": [{"name": "scratch", "mountPath": "/scratch", "subPath": "a", "readOnly": True}],
            "tolerations": [
                {"key": "gpu", "operator": "Equal", "value": "yes", "effect": "NoExecute", "tolerationSeconds": 5},
            ],
            "labels": {"team": "a"},
            "terminationGracePeriodSeconds": 10,
        },
        "podOverrides": {"spec": {"hostNetwork": False}},
    }  # fmt: skip


def full_task_job() -> Object:
    """A TrainingJob with `task` and a model known by its sizes."""
    model = {"kind": "measured", "name": "m", "parameters": 1000, "trainableParameters": 10, "bufferBytes": 1,
             "activationBytesPerSample": 1}  # fmt: skip
    job = minimal(**_shared_spec(), task="tasks:train", taskArgs={"rate": "0.1"}, model=model,
                  plugins=[{"name": "compression", "options": {"method": "int8"}}])  # fmt: skip
    job["metadata"]["name"] = "full-task"
    job["spec"]["parallelism"]["taskRules"] = ["tensor"]
    return job


def full_command_job() -> Object:
    """A TrainingJob with `command` and a transformer."""
    model = {"kind": "transformer", "name": "t", "layers": 2, "hidden": 64, "heads": 4, "kvHeads": 2, "headDim": 16,
             "ffn": 128, "vocab": 100, "gatedFfn": True, "tiedEmbeddings": False, "norm": "layer", "bias": "qkv",
             "learnedPositions": 8, "maxSequence": 8, "frozenLayers": 1,
             "experts": {"count": 4, "perToken": 2, "ffn": 32, "sharedFfn": 16, "denseLayers": 1, "every": 1},
             "latentAttention": {"queryRank": 8, "kvRank": 8, "nopeDim": 8, "ropeDim": 4, "valueDim": 8},
             "adapter": {"rank": 2, "attentionOnly": True}}  # fmt: skip
    job = minimal(**_shared_spec(), command=["train.py", "--fast"], model=model) | {}
    del job["spec"]["task"]
    job["metadata"]["name"] = "full-command"
    return job


def full_pool() -> Object:
    """A ResourcePool with everything set."""
    return {
        "apiVersion": "kuangchao.io/v1alpha1",
        "kind": "ResourcePool",
        "metadata": {"name": "full"},
        "spec": {
            "nodeSelector": {"pool": "a"}, "deviceType": "gpu", "cpuPerDevice": "250m", "memoryPerDevice": "1Gi",
            "quota": 8, "debugSharePercent": 10, "queueing": "StrictFIFO", "bandwidthPerNode": "10G",
            "health": {"maxTemperatureCelsius": 90, "maxUncorrectableEcc": 1},
        },
    }  # fmt: skip


def full_descriptor() -> Object:
    """A ResourceDescriptor with everything set."""
    return {
        "apiVersion": "kuangchao.io/v1alpha1",
        "kind": "ResourceDescriptor",
        "metadata": {"name": "node-1-1"},
        "spec": {
            "node": "node-1", "generation": 1, "observedAt": "2026-01-02T03:04:05Z", "driver": "580.1",
            "host": {
                "allocatableMilliCpu": 8000, "allocatableMemoryBytes": 2**34, "othersMilliCpu": 100,
                "othersMemoryBytes": 2**20,
            },
            "devices": [{
                "index": 0, "uuid": "GPU-1", "kind": "gpu", "model": "H100", "memoryBytes": 2**36,
                "computeCapability": "9.0", "pciBusId": "0000:01:00.0", "numaNode": 0, "healthy": False,
                "reason": "Xid",
            }],
            "links": [{"first": 0, "second": 1, "kind": "NV18"}],
        },
    }  # fmt: skip


def full_plan() -> Object:
    """A ParallelPlan with everything set."""
    return {
        "apiVersion": "kuangchao.io/v1alpha1",
        "kind": "ParallelPlan",
        "metadata": {"name": "job-abcdef-12345678"},
        "spec": {
            "job": "job", "hash": DIGEST, "summary": "dp8",
            "plan": {
                "worldSize": 8, "perPod": 2, "pods": 4, "tensor": 1, "pipeline": 1, "data": 8, "context": 1,
                "expert": 1, "sequence": False, "virtualStages": 1, "microBatch": 1, "accumulationSteps": 1,
                "globalBatch": 8, "recompute": "none", "sharding": "none", "managed": True, "memoryChecked": True,
                "groups": [{"axis": "data", "size": 8, "stride": 1}],
                "memory": [{
                    "stage": 0, "lastStage": 0, "parametersBytes": 1, "gradientsBytes": 1, "optimizerBytes": 1,
                    "activationsBytes": 1, "otherBytes": 1, "totalBytes": 5, "reservedBytes": 6,
                    "arithmetic": ["1 + 1"],
                }],
                "deviceMemoryBytes": 100, "stepMicroseconds": 5, "bubblePpm": 0,
                "alternatives": [{"summary": "tp2dp4", "reason": "slower"}],
                "rejected": [{"axis": "tensor", "reason": "not needed"}],
                "requestDigest": DIGEST, "schedule": "zb-v", "stageLayers": [1, 1], "expertTensor": 2, "shardRanks": 4,
                "objective": "memory",
                "step": {
                    "stepUs": 9, "computeUs": 1, "tensorUs": 1, "contextUs": 1, "expertUs": 1, "pipelineUs": 1,
                    "dataUs": 1, "optimizerUs": 1, "bubblePpm": 1, "mfuPpm": 1, "hfuPpm": 1,
                },
                "overlays": [{"axis": "shard", "size": 4, "stride": 1}],
                "placement": [
                    {"within": "node", "size": 2, "stride": 1, "required": True, "reason": "tensor"},
                ],
            },
        },
    }  # fmt: skip


FULL = {
    "job-task": full_task_job(),
    "job-command": full_command_job(),
    "pool": full_pool(),
    "descriptor": full_descriptor(),
    "plan": full_plan(),
}
