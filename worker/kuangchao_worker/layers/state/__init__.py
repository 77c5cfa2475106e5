"""State in the rank: sole authority over weights and optimizer, and over what is saved. Never touches links or plan."""
