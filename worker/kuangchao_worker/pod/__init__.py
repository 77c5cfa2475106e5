"""What processes of one pod share: assignment, channel, tokens, shards, store. Starts and decides nothing."""
