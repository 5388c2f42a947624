"""What the edge itself refuses, before any use case is asked; the docstring of a class is its title."""

from ledger.domain.errors import LedgerError


class BodyTooLarge(LedgerError):
    """The body, or what it decompresses to, is larger than this service accepts."""

    code = "body_too_large"


class BodyBroken(LedgerError):
    """The body is not what its Content-Encoding or Content-Length says."""

    code = "body_broken"


class EncodingUnsupported(LedgerError):
    """The body is compressed in a way that this service does not read."""

    code = "encoding_unsupported"


class MediaTypeUnsupported(LedgerError):
    """The body is declared as something other than JSON."""

    code = "media_type_unsupported"


class NotAcceptable(LedgerError):
    """None of the accepted media types can be produced."""

    code = "not_acceptable"


class CrossSite(LedgerError):
    """A page of another site tried to write through a browser."""

    code = "cross_site"


class NotReady(LedgerError):
    """The service cannot take requests at the moment."""

    code = "not_ready"
    retry_after_seconds = 1
