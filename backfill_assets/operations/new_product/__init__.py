"""A product that somebody begins with: `backfill new-product` writes it, and it runs as it is written.

Put here what a new product is drafted from (`drafts`), which of its parts are guessed and how (`guesses`), and how its files
are written (`folders`, with the texts in `templates/`). What a product may declare is `declarations`' to say.
"""
