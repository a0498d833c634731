"""Small directories of every kind that the program writes, and what was in them."""
