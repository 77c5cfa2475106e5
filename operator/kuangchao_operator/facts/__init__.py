"""Facts that several layers read: the recorded job. Below the layers, above Kubernetes and the local runner."""
