"""Text for language models: where it comes from, how it is split, and its tokens on disk.

documents    one file, record or piece of text at a time: .txt, .jsonl, .parquet, a folder
named        corpora by name: sources of Python, speeches, books
division     documents without duplicates, each in one split
codecs       bytes or byte pairs, and back
streams      the tokens of each split, mapped from a cache
"""
