"""HOW it is shown: results in; figures, terminal tables and HTML pages out.

text       numbers as text, in the same words everywhere
figures/   files drawn with matplotlib; knows text and analysis
tables     tables of a diagnosis as text; knows figures
terminal/  progress and tables on a terminal; knows all of the above
page/      one HTML file of a store of runs, or of a diagnosis; knows all of the above but the terminal
"""
