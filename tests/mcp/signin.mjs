// An official TypeScript client of either line that signs in: `node signin.mjs LINE URL TEXT`. The login page answers at once,
// so nobody has to look at it: it is asked here, and what it sends to the client's address is given to the client. Then a
// tool says TEXT twice, and its answers are printed.
import assert from "node:assert/strict";

const [line, url, text] = process.argv.slice(2);
const redirectUrl = "http://localhost:1/callback";
const { Client, Transport, Unauthorized } = await (line === "1" ? older() : newer());

async function older() {
  const { Client } = await import("@modelcontextprotocol/sdk/client/index.js");
  const { StreamableHTTPClientTransport } = await import("@modelcontextprotocol/sdk/client/streamableHttp.js");
  const { UnauthorizedError } = await import("@modelcontextprotocol/sdk/client/auth.js");
  return { Client, Transport: StreamableHTTPClientTransport, Unauthorized: UnauthorizedError };
}

async function newer() {
  const { Client, StreamableHTTPClientTransport, UnauthorizedError } = await import("@modelcontextprotocol/client");
  return { Client, Transport: StreamableHTTPClientTransport, Unauthorized: UnauthorizedError };
}

// What a client remembers of its user's login.
class Provider {
  redirectUrl = redirectUrl;
  clientMetadata = {
    client_name: "test",
    redirect_uris: [redirectUrl],
    grant_types: ["authorization_code", "refresh_token"],
    response_types: ["code"],
    token_endpoint_auth_method: "none",
  };
  clientInformation() {
    return this.information;
  }
  saveClientInformation(information) {
    this.information = information;
  }
  tokens() {
    return this.kept;
  }
  saveTokens(tokens) {
    this.kept = tokens;
  }
  saveCodeVerifier(verifier) {
    this.verifier = verifier;
  }
  codeVerifier() {
    return this.verifier;
  }
  async redirectToAuthorization(page) {
    assert.equal(this.code, undefined, "the user is asked a second time");
    const answer = await fetch(page, { redirect: "manual" });
    assert.equal(answer.status, 302, await answer.text());
    const back = new URL(answer.headers.get("location"));
    assert.equal(back.origin + back.pathname, redirectUrl);
    this.code = back.searchParams.get("code");
  }
}

const authProvider = new Provider();
const connected = async () => {
  const client = new Client({ name: "test", version: "1" });
  const transport = new Transport(new URL(url), { authProvider });
  try {
    await client.connect(transport);
  } catch (error) {
    error.transport = transport;
    throw error;
  }
  return client;
};

let client;
try {
  client = await connected();
} catch (error) {
  if (!(error instanceof Unauthorized)) throw error;
  await error.transport.finishAuth(authProvider.code);
  client = await connected();
}
assert.ok(authProvider.code, "nobody had to sign in");
for (let round = 0; round < 2; round++) {
  const { content } = await client.callTool({ name: "echo", arguments: { text } });
  console.log(content[0].text);
}
await client.close();
