"""From the pydantic models of the kinds to CustomResourceDefinitions; used at build time only."""
