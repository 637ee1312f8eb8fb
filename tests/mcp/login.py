"""An authorization server for the tests, on the loopback with TLS: metadata (RFC 8414), registration (RFC 7591), a login
page that says yes at once, tokens with PKCE (RFC 7636), and keys (RFC 7517). It makes any other token, too, and checks
one for proxies that ask (`/oauth2/auth`). Its keys and signatures are those of openssl(1).
"""

import base64
import hashlib
import http.server
import json
import os
import secrets
import ssl
import subprocess
import threading
import time
import urllib.parse


def encoded(data):
    data = data if isinstance(data, bytes) else json.dumps(data).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def decoded(text):
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def openssl(*arguments, data=None):
    return subprocess.run(["openssl", *arguments], input=data, check=True, capture_output=True).stdout


class Key:
    """An RSA key in a file."""

    def __init__(self, folder, name):
        self.path, self.public, self.id = os.path.join(folder, f"{name}.key"), os.path.join(folder, f"{name}.pub"), name
        openssl("genrsa", "-out", self.path, "2048")
        openssl("rsa", "-in", self.path, "-pubout", "-out", self.public)

    def jwk(self):
        modulus = bytes.fromhex(openssl("rsa", "-in", self.path, "-noout", "-modulus").decode().strip().partition("=")[2])
        return {"kty": "RSA", "use": "sig", "alg": "RS256", "kid": self.id, "n": encoded(modulus), "e": "AQAB"}

    def sign(self, text):
        return openssl("dgst", "-sha256", "-sign", self.path, data=text.encode())

    def verifies(self, text, signature):
        path = os.path.join(os.path.dirname(self.path), secrets.token_hex(8))
        with open(path, "wb") as file:
            file.write(signature)
        done = subprocess.run(["openssl", "dgst", "-sha256", "-verify", self.public, "-signature", path],
                              input=text.encode(), capture_output=True)
        os.unlink(path)
        return done.returncode == 0


class Login:
    """The server, in threads of this process. `audience` is whom its tokens are for."""

    def __init__(self, folder, certificate, audience):
        self.key, self.strange = Key(folder, "login"), Key(folder, "strange")
        self.audience = audience
        self.clients, self.codes, self.refreshes = {}, {}, {}
        # What was asked, by path; and how long the next tokens last, in seconds.
        self.asked, self.lasts = [], []
        # What proxies told it of requests, beside the token: fields.
        self.told = []
        self.lock = threading.Lock()
        login = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_what):
                pass

            def do_GET(self):
                login.serve(self)

            do_POST = do_OPTIONS = do_GET

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        # The handshake is the thread's of the connection, so that nobody keeps the others waiting.
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True, do_handshake_on_connect=False)
        self.port = self.server.server_port
        # Without a certificate, for a proxy on this machine that asks whose a token is.
        self.plain = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.plain.daemon_threads = True
        self.issuer = f"https://localhost:{self.port}"
        for server in (self.server, self.plain):
            threading.Thread(target=server.serve_forever, daemon=True).start()

    def close(self):
        for server in (self.server, self.plain):
            server.shutdown()
            server.server_close()

    def token(self, key=None, header=None, **claims):
        """A token; a claim that is None is left out."""
        now = int(time.time())
        claims = {"iss": self.issuer, "sub": "alice", "aud": self.audience, "iat": now, "exp": now + 3600, **claims}
        key = key or self.key
        header = {"alg": "RS256", "typ": "JWT", "kid": self.key.id, **(header or {})}
        text = f"{encoded(header)}.{encoded({name: one for name, one in claims.items() if one is not None})}"
        return f"{text}.{'' if header['alg'] == 'none' else encoded(key.sign(text))}"

    def holder(self, token):
        """Whose a token is, as claims, or None if it is not good."""
        try:
            text, _, signature = token.rpartition(".")
            header, claims = (json.loads(decoded(part)) for part in text.split("."))
            is_good = header["alg"] == "RS256" and self.key.verifies(text, decoded(signature))
            audiences = claims["aud"] if isinstance(claims["aud"], list) else [claims["aud"]]
            is_ours = claims["iss"] == self.issuer and self.audience in audiences
            return claims if is_good and is_ours and claims["exp"] > time.time() >= claims.get("nbf", 0) else None
        except (ValueError, KeyError, TypeError):
            return None

    def serve(self, request):
        url = urllib.parse.urlsplit(request.path)
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0)).decode()
        with self.lock:
            self.asked.append(url.path)
        pages = {"/.well-known/oauth-authorization-server": self.metadata, "/register": self.register,
                 "/authorize": self.authorize, "/token": self.give, "/jwks": self.keys, "/oauth2/auth": self.check}
        page = pages.get(url.path)
        fields, status, answer = {}, 404, {"error": "not_found"}
        if page:
            status, fields, answer = page(request, dict(urllib.parse.parse_qsl(url.query)), body)
        data = b"" if answer is None else json.dumps(answer).encode()
        request.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(data)), **fields}.items():
            request.send_header(name, value)
        request.end_headers()
        request.wfile.write(data)

    def metadata(self, *_asked):
        at = {"authorization_endpoint": "authorize", "token_endpoint": "token", "registration_endpoint": "register",
              "jwks_uri": "jwks"}
        return 200, {}, {"issuer": self.issuer, **{name: f"{self.issuer}/{path}" for name, path in at.items()},
                         "response_types_supported": ["code"], "grant_types_supported": ["authorization_code", "refresh_token"],
                         "token_endpoint_auth_methods_supported": ["none"], "code_challenge_methods_supported": ["S256"]}

    def register(self, _request, _query, body):
        asked = json.loads(body)
        id = secrets.token_urlsafe(8)
        self.clients[id] = asked["redirect_uris"]
        return 201, {}, {**asked, "client_id": id, "token_endpoint_auth_method": "none"}

    def authorize(self, _request, query, _body):
        if query["redirect_uri"] not in self.clients.get(query["client_id"], []):
            return 400, {}, {"error": "invalid_request"}
        if query.get("code_challenge_method") != "S256" or query.get("resource") != self.audience:
            return 400, {}, {"error": "invalid_target"}
        code = secrets.token_urlsafe(8)
        self.codes[code] = query
        answer = {"code": code, **({"state": query["state"]} if "state" in query else {})}
        return 302, {"Location": f"{query['redirect_uri']}?{urllib.parse.urlencode(answer)}"}, None

    def give(self, _request, _query, body):
        asked = dict(urllib.parse.parse_qsl(body))
        if asked.get("grant_type") == "refresh_token":
            is_known = self.refreshes.pop(asked.get("refresh_token"), None)
        else:
            begun = self.codes.pop(asked.get("code"), None)
            proof = encoded(hashlib.sha256(asked.get("code_verifier", "").encode()).digest())
            is_known = begun and begun["code_challenge"] == proof and begun["redirect_uri"] == asked["redirect_uri"]
        if not is_known:
            return 400, {}, {"error": "invalid_grant"}
        lasts = self.lasts.pop(0) if self.lasts else 3600
        again = secrets.token_urlsafe(8)
        self.refreshes[again] = True
        # What it says of the time is not what is true of it: a client that learns of the end from a 401 has to go on.
        return 200, {"Cache-Control": "no-store"}, {
            "access_token": self.token(exp=int(time.time()) + lasts), "token_type": "Bearer", "expires_in": 3600,
            "refresh_token": again}

    def keys(self, *_asked):
        return 200, {}, {"keys": [self.key.jwk()]}

    def check(self, request, _query, _body):
        kind, _, token = request.headers.get("Authorization", "").partition(" ")
        with self.lock:
            self.told += [(name, value) for name, value in request.headers.items() if name.lower() != "authorization"]
        holder = self.holder(token) if kind.lower() == "bearer" else None
        if holder is None or not holder.get("sub"):
            # A name beside a refusal counts for nothing.
            return 401, {"X-Auth-Request-User": "mallory", "X-Auth-Request-Groups": "operators"}, None
        groups = {"X-Auth-Request-Groups": holder["groups"]} if "groups" in holder else {}
        return 202, {"X-Auth-Request-User": holder["sub"], **groups}, None
