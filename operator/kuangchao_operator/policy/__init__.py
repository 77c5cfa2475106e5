"""The policy document as a YAML file: strict reading. Shared by the issuer and the command line; decides nothing."""
