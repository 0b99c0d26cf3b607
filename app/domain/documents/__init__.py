"""Documents beside a log: what each says about a run, and which reader takes which.

recognise(name, head) -> kind         by content; a name only decides between readers that both fit
read_document(kind, chunks) -> Document
"""

from app.domain.documents.document import Document, DocumentKind
from app.domain.documents.read import MAX_DOCUMENT_BYTES, read_document
from app.domain.documents.recognise import HEAD_BYTES, recognise

__all__ = ["HEAD_BYTES", "MAX_DOCUMENT_BYTES", "Document", "DocumentKind", "read_document", "recognise"]
