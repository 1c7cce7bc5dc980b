"""Worker: what runs in a process that something started for tasks, and how the two speak to each other.

A fresh process imports this package and what its tasks are made of, and nothing of those who keep it.
"""
