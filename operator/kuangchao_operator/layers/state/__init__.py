"""State in the control plane: decisions on faults and the ledger of committed checkpoints."""
