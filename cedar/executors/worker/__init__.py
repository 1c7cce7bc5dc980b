"""The code that runs in worker processes, and the messages between a worker and its parent process.

A new worker imports this package and ``cedar.tasks``, but not the packages that manage workers.
"""
