"""How history is fetched: servers are asked and their answers kept whole, files are found and read.

Put here what knows a protocol or a format. What a record means is its product's translator's; how rows get into tables is
`ingestion`'s, which reads what is kept here and asks no server.
"""
