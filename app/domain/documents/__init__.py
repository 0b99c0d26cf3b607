"""Documents uploaded with a log: recognising their kind and reading what they state about a run.

recognise(name, head) -> kind         by content; the file name only breaks ties
read_document(kind, chunks) -> Document
"""
