"""Studies: a question each, with a figure, a table and what others published about it."""
