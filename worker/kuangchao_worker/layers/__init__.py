"""The worker halves of the layers. No layer imports another: they meet only at the rank's gate."""
