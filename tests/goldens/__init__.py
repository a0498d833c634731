"""Small directories that an earlier version of the program wrote, and what was in them."""
