"""Make a data folder again from the objects of its logs."""
