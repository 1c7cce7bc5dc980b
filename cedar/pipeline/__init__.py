"""Pipeline and the functions that begin one."""
