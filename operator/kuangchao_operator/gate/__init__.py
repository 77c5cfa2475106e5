"""The operator's gate to the outside: HTTPS server, fence, minting of tokens, workers' front door. Holds no keys."""
