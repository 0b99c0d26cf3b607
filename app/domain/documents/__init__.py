"""Documents beside a log: what each says about a run, and which reader takes which.

recognise(name, head) -> kind         by content; a name only decides between readers that both fit
read_document(kind, chunks) -> Document
"""
