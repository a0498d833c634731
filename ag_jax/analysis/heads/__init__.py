"""What attention heads look at: the attention between words, and how often it is right for the queries of a probe."""
