"""Groups: list columns whose rows repeat together. Each distinct row is stored once.

``column`` is the column kind, ``encode`` finds equal rows, and ``gather`` picks rows of jagged values.
"""
