"""Records of files and data sets, for all that the program reads: text, pairs of texts, tasks and probes.

sources --> parts (files, folders, archives, data sets) --files--> streams of bytes --formats--> located records
"""
