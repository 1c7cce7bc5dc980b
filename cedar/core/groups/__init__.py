"""Groups: columns of lists that repeat together, each distinct row held once.

``column`` is the column kind, ``encode`` finds equal rows, and ``gather`` picks rows of jagged values.
"""
