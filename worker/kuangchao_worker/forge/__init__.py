"""A process with torch already imported, from which ranks are forked: a restart costs a fork, not a long import."""
