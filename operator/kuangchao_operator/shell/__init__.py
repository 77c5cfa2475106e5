"""The loop of one job, shared by the operator and the local runner: facts in, decisions made, actions through the gate.

Knows no Kubernetes and no subprocess: both reach it through the interfaces in `ports`.
"""
