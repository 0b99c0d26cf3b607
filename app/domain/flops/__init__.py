"""How much work a step is: the shape of a model, its FLOPs, and what a GPU could do at most."""
