"""What a person sees in a terminal: the progress of runs, and tables of results."""
