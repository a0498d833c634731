"""Settings from papers and released code, shared by config files."""
