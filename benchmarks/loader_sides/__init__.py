"""The sides of the loader's benchmark: one file a peer, and what they share.

A side's file has `open_side(job) -> Epoch`. It is imported only in the process that runs the side, under that side's
interpreter; catalog.py, job.py and process_tree.py are read by both ends and import no peer.
"""
