"""One rank: the process that trains. Wires the layers to its own gate; holds no rights but those of its tokens."""
