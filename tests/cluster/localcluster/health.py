"""Asking a server whether it is ready."""

from __future__ import annotations

import http.client
import ssl
import urllib.error
import urllib.request


def http_fault(address: str) -> str | None:
    """Why GET of a health address does not answer 200; None if it does.

    Certificates are not checked: some components sign their own, and the answer decides nothing but when to go on.
    """
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    # Never through a proxy: the address is one of this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    try:
        with opener.open(address, timeout=3):
            return None
    except urllib.error.HTTPError as error:
        return f"{address} answers {error.code}"
    except (OSError, http.client.HTTPException) as error:
        return f"{address} does not answer: {error}"
