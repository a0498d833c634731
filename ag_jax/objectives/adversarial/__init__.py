"""Objectives that attack another one while it trains: it must say the same, or be right, all the same."""
