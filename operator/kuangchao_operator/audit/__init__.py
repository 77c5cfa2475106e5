"""The audit store: durable, hash-chained, one writer. Keeps records; never tokens, never request bodies."""
