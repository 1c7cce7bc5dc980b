"""Decode list columns of Parquet files, only the rows that are asked for."""
