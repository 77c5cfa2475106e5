"""How a model may be split where its task does not say: read off one forward pass without values. It splits nothing."""
