"""What the agent and the ranks of one pod share: assignment, channel, tokens, network. Starts and decides nothing."""
