"""The Python API: functions that do what the verbs of the command do, and the objects that they return.

`ag_jax/__init__.py` lists the names.
"""
