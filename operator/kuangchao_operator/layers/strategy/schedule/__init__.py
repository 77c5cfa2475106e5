"""Schedule: in which order a pipeline's stages run their passes, and what one step of it looks like. Pure.

`orders` writes the order of each stage down, `transport` adds what stages send each other, `waits` finds who waits for
whom for ever, `run` gives every pass and transfer its time; `terminal`, `svg` and `chrome` draw it. It chooses nothing.
"""
