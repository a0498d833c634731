"""Settings: dataclasses and their values, config files, and what documents them."""
