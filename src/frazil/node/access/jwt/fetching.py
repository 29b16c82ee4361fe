"""Fetch a small document from an issuer: with limits on time and size, and never from another host."""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.request
from email.message import Message
from typing import IO
from urllib.parse import urlsplit

TIMEOUT_SECONDS = 5
TOTAL_SECONDS = 15
_CHUNK_BYTES = 16 * 1024


class _SameHost(urllib.request.HTTPRedirectHandler):
    """Follow redirects to the same scheme, host and port alone."""

    max_redirections = 3

    def redirect_request(  # noqa: PLR0913, RUF100 - as in the base class
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: Message,
        newurl: str,
    ) -> urllib.request.Request | None:
        before, after = urlsplit(req.full_url), urlsplit(newurl)
        if (before.scheme, before.netloc) != (after.scheme, after.netloc):
            raise OSError(0, "it redirects to another host")
        return super().redirect_request(req, fp, code, msg, headers, newurl)  # type: ignore[arg-type]


def fetched(url: str, bytes_max: int) -> bytes:
    """Return the document at an http or https address, whose certificate is verified. Raises `OSError`."""
    if not url.startswith(("https://", "http://")):
        raise OSError(0, "it is neither an https nor an http address")
    opener = urllib.request.build_opener(_SameHost())
    request = urllib.request.Request(url, headers={"accept": "application/json", "user-agent": "frazil"})  # noqa: S310
    end = time.monotonic() + TOTAL_SECONDS
    try:
        with opener.open(request, timeout=TIMEOUT_SECONDS) as answer:
            return _read(answer, bytes_max, end)
    except urllib.error.HTTPError as error:
        error.close()
        raise OSError(0, f"it answered with status {error.code}") from None
    except urllib.error.URLError as error:
        raise OSError(0, f"it can't be reached: {error.reason}") from None
    except (http.client.HTTPException, ValueError) as error:
        raise OSError(0, f"it gave no valid answer: {type(error).__name__}") from None


def _read(answer: http.client.HTTPResponse, bytes_max: int, end: float) -> bytes:
    data = b""
    while chunk := answer.read1(_CHUNK_BYTES):
        data += chunk
        if len(data) > bytes_max:
            raise OSError(0, f"it has more than {bytes_max} bytes")
        if time.monotonic() > end:
            raise OSError(0, f"it took longer than {TOTAL_SECONDS} seconds")
    return data
