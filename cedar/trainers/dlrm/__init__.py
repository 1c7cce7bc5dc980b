"""A deep learning recommendation model (DLRM, arXiv 1906.00091) whose repeated rows are looked up and computed once."""
