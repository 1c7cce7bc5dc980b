"""Groups: columns of lists that repeat together, each distinct row held once.

``column`` is the column kind of a block, ``encode`` tells equal rows, ``gather`` picks rows of jagged values.
"""
