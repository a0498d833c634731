"""Memory and speed of a run on TPU slices, from programs compiled ahead of time; no TPU needed."""
