"""Coordination of several hosts and processes: exchange of values, storage, locks, and a watchdog."""
