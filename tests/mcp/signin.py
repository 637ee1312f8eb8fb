"""The official Python client of either line that signs in: `signin.py LINE CA URL TEXT`. The login page answers at once, so
nobody has to look at it: it is asked here, and what it sends to the client's address is given to the client. Then a tool says
TEXT twice, and its answers are printed.
"""

import ssl
import sys
import urllib.parse

import anyio
import mcp
from mcp.client.auth import OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientMetadata

LINE, CA, URL, TEXT = sys.argv[1:]
LIBRARY = __import__("httpx2" if LINE == "2" else "httpx")
BACK = "http://localhost:1/callback"


class Storage:
    """What a client remembers of its user's login."""

    tokens = information = None

    async def get_tokens(self):
        return self.tokens

    async def set_tokens(self, tokens):
        self.tokens = tokens

    async def get_client_info(self):
        return self.information

    async def set_client_info(self, information):
        self.information = information


class User:
    """Who signs in."""

    def __init__(self, trust):
        self.trust, self.answers, self.count = trust, [], 0

    async def opens(self, page):
        self.count += 1
        async with LIBRARY.AsyncClient(verify=self.trust) as browser:
            answer = await browser.get(page)
        assert answer.status_code == 302, answer.text
        address, _, query = answer.headers["location"].partition("?")
        assert address == BACK, address
        self.answers.append(dict(urllib.parse.parse_qsl(query)))

    async def returns(self):
        answer = self.answers.pop()
        if LINE == "1":
            return answer["code"], answer["state"]
        from mcp.shared.auth import AuthorizationCodeResult
        return AuthorizationCodeResult(**answer)


async def comes_by_http_2(response):
    """The proxy speaks HTTP/2; the authorization server of the tests does not."""
    assert not str(response.url).startswith(URL) or response.http_version == "HTTP/2", response.http_version


async def use(client):
    for _ in range(2):
        result = await client.call_tool("echo", {"text": TEXT})
        print(result.content[0].text)


async def main():
    trust = ssl.create_default_context(cafile=CA)
    user = User(trust)
    about = OAuthClientMetadata(client_name="test", redirect_uris=[BACK], token_endpoint_auth_method="none")
    login = OAuthClientProvider(server_url=URL, client_metadata=about, storage=Storage(), redirect_handler=user.opens,
                                callback_handler=user.returns)
    hooks = {"response": [comes_by_http_2]}
    async with LIBRARY.AsyncClient(auth=login, verify=trust, timeout=60, http2=True, event_hooks=hooks) as http:
        way = streamable_http_client(URL, http_client=http)
        if LINE == "2":
            async with mcp.Client(way, mode="legacy") as client:
                await use(client)
        else:
            async with way as (reads, writes, _), mcp.ClientSession(reads, writes) as client:
                await client.initialize()
                await use(client)
    assert user.count, "nobody had to sign in"


anyio.run(main)
