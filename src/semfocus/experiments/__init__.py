"""WHICH runs: experiments as plain data, the paper's studies, `compare`, and the one path from plan to page."""
