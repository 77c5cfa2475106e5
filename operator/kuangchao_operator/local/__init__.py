"""Local runner: the operator's core, gate and worker code over processes of this machine, without a cluster.

One job, one process tree. Never needs root, never leaves a process behind.
"""
