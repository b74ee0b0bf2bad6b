"""What we know how to change about a training run, from outside and without touching the script.

In: what was measured and concluded. Out: fixes worth trying, and their installers, which the training process calls by
name. Refuses to measure, and to judge whether a fix helped.
"""
