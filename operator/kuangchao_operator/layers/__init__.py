"""The layers as they act in the control plane. No layer imports another: they meet in ports and the gate.

Same file names throughout: `decide.py` is pure, `service.py` has the effects, `model.py` the layer's own values.
"""
