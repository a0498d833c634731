"""Several hosts and processes: agreement, storage, locks."""
