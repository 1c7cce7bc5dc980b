"""The key of the store that tests ask."""

from cedar.trainers.common import links

KEY = b"k" * links.KEY
