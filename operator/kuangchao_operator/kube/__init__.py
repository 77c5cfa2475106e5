"""Kubernetes as facts and effects: the only package beside handlers and app that knows an API server.

It decides nothing about jobs; what to create or delete is told by the layers through the gate.
"""
