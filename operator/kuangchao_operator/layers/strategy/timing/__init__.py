"""How long a step of a plan takes: kernels, collectives, bubbles, updates. Pure, but for `shipped`."""
