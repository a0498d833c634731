"""Looking inside: attention maps, where the mass goes, plots."""
