"""The Sphinx side of the book: execution and its cache, the ledger, names, maths and the theme."""
