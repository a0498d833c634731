"""Figures of attention, training curves, attacks and searches, drawn with matplotlib."""
