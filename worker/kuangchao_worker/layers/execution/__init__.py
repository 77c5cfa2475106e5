"""Execution in the rank: carries out the plan step by step. Never changes a plan, never touches weights or links."""
