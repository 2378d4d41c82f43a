"""What changes what readers see: publication, rollback, reinstatement, acceptance, and the lease they hold meanwhile.

Put here what must be true before a commit, the commits of each publish mode, and how a commit of unknown outcome is settled.
"""
