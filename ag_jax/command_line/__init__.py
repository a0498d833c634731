"""The command line: its verbs and flags, and the texts of `ag-jax help`."""
