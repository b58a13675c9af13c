"""HOW it is shown: results in; figures, terminal tables and HTML pages out.

text       numbers, labels and tables of a diagnosis as text, in the same words everywhere
figures/   files drawn with matplotlib; knows text and analysis
terminal/  progress and tables on a terminal; knows all of the above
page/      one HTML file of a store of runs, or of a diagnosis; knows all of the above but the terminal
"""
