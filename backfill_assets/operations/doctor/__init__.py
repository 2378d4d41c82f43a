"""The doctor: holds ledger, tables, staged files and evidence against each other, and says what disagrees.

A module is named for what it looks at. Put there a look for each way in which the stores can come to disagree, and the
repair where one is provably safe; `examination` takes the looks in order. A look changes nothing. It reads one store after
the other, while others work: what it finds counts if nothing has moved meanwhile, or if it is found again (`settling`); what
somebody is at just now is said to be under way, and is no disagreement yet. A repair is one transaction that changes what was
looked at or nothing, or the publisher's own way of recording what landed; whatever needs a judgement is left to people, with
what they can do.
"""
