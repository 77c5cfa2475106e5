"""The node agent: a process on each node that publishes the node's descriptor and does nothing else.

`python -m kuangchao_operator.layers.resource.agent` with NODE_NAME in the environment.
"""
