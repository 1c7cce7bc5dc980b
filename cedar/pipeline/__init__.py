"""Pipeline, and the functions that create one."""
