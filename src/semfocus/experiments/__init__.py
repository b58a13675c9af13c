"""The paper's experiments as plain functions that return configurations."""
