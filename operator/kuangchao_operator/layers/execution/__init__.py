"""Execution in the control plane: queue, gang, placement, launch and the life cycle of a job."""
