"""Settings of papers and released programs, for config files."""
