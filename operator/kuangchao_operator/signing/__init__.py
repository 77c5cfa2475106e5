"""The issuer: signing keys, the CA, minting. A process of its own; nothing else may import this package."""
