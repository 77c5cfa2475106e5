"""Interface edge: the `kuangchao` command, also found by kubectl as a plugin. Talks to people, decides nothing."""
