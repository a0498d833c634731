"""Analysis of trained models: attention maps, attention mass on patterns, effects of attacks, and figures of them."""
