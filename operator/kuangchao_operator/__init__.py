"""The control plane of Kuangchao: operator, issuer, governance, node agent, CLI and local runner."""
