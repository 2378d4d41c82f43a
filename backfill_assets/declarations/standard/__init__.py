"""Gates that any target gets for a line of its declaration, beside those of `standard_gates`.

Put here a gate that needs nothing of a product but names and numbers, in the module of what it looks at: rows and NULLs
(`counts`), values (`values`), their distribution (`distributions`), a series (`series`), other tables (`references`), or a file
in the product's package (`checksums`, `known_cases`). What a product has to recompute is its own reconciliation.
"""
