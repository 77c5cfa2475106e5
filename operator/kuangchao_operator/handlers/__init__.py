"""Thin adapters between events of the cluster and the job loops. They set events and caches; they decide nothing."""
