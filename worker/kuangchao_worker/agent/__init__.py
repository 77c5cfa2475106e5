"""PID 1 of a worker pod: joins, starts ranks, reports, commits checkpoints. Decides nothing about faults."""
