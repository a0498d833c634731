"""Damaged files for every loader, and random command lines: what the program does with them.

    python -m tests.fuzz --commands=300 --files=20000 --seed=0     # seeded; pytest does not collect it
    python -m tests.fuzz --loader="config file" --commands=0       # only loaders whose names contain this
    python -m tests.fuzz --only=F1234                              # repeat one case, with its whole message

A case is one damaged file or one command line, made by its number and the seed alone. A case passes if it ends within
its limits of time and memory, either with one clear error that names the file, or with a result that is allowed: the
result of the undamaged file, or another one where the program cannot tell (a letter of the training text, a valid
setting). Everything else is a finding. The table at the end has one line for each kind of finding: how often it was
seen, its first case, the file, the damages, and what happened. The exit status is 1 if there are findings.
"""
