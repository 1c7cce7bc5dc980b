"""A deep learning recommendation model (DLRM, arXiv 1906.00091) that looks up and computes repeated rows only once."""
