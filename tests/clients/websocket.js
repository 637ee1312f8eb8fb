// npm `ws` against the daemon: `node websocket.js CASE URL MORE UNIX`. websocket.py names the cases.
import assert from "node:assert/strict";
import { once } from "node:events";
import { WebSocket } from "ws";

const [name, url, more, unix] = process.argv.slice(2);

// A connection and its received messages, in order.
class Client {
  constructor(url, protocols, options) {
    this.socket = new WebSocket(url, protocols, options);
    this.heard = [];
    this.wake = () => {};
    this.socket.on("message", (data, isBinary) => {
      assert.equal(isBinary, false);
      this.heard.push(JSON.parse(data));
      this.wake();
    });
    this.closed = once(this.socket, "close").then(([code, reason]) => ({ code, reason: String(reason) }));
  }

  static async open(...args) {
    const client = new Client(...args);
    await once(client.socket, "open");
    return client;
  }

  async next() {
    while (this.heard.length === 0) {
      await Promise.race([
        new Promise((resolve) => (this.wake = resolve)),
        this.closed.then(({ code, reason }) => assert.fail(`closed with ${code} ${reason}`)),
      ]);
    }
    return this.heard.shift();
  }

  ask(id, params = {}) {
    this.socket.send(request(id, params));
  }

  async echoes(id, params = {}) {
    const answer = await this.next();
    assert.equal(answer.id, id);
    assert.deepEqual(answer.result.echo, params);
  }

  async leave(code) {
    this.socket.close(code);
    return (await this.closed).code;
  }
}

function request(id, params = {}) {
  return JSON.stringify({ jsonrpc: "2.0", id, method: "echo", params });
}

// The status and the body of a refusal.
async function refusal(url, protocols, options) {
  const socket = new WebSocket(url, protocols, options);
  const [, response] = await once(socket, "unexpected-response");
  let body = "";
  for await (const chunk of response) body += chunk;
  assert.match(body, /^[^\n]*\n$/);
  return { status: response.statusCode, fields: response.headers, body: JSON.parse(body) };
}

const cases = {
  async fragments_with_pings() {
    const client = await Client.open(url);
    const pongs = [];
    client.socket.on("pong", (data) => pongs.push(String(data)));
    const bytes = Buffer.from(request(1, { text: "äöü€😀".repeat(20) }));
    for (let at = 0; at < bytes.length; at += 7) {
      client.socket.send(bytes.subarray(at, at + 7), { binary: false, fin: at + 7 >= bytes.length });
      client.socket.ping(String(at));
    }
    await client.echoes(1, { text: "äöü€😀".repeat(20) });
    while (pongs.length < Math.ceil(bytes.length / 7)) await once(client.socket, "pong");
    assert.deepEqual(pongs, pongs.map((_, at) => String(7 * at)));
    assert.equal(await client.leave(1000), 1000);
  },

  async a_megabyte() {
    const client = await Client.open(url);
    const text = "x".repeat(1_000_000);
    for (let id = 0; id < 3; id++) {
      client.ask(id, { text });
      await client.echoes(id, { text });
    }
    await client.leave();
  },

  async newlines() {
    const client = await Client.open(url);
    for (let id = 0; id < 3; id++) client.socket.send(`${JSON.stringify(JSON.parse(request(id)), null, 2)}\r\n`);
    for (let id = 0; id < 3; id++) await client.echoes(id);
    await client.leave();
  },

  async binary() {
    const client = await Client.open(url);
    client.socket.send(Buffer.from(request(1)));
    client.socket.send(Buffer.from("\n"), { fin: false });
    client.socket.send(Buffer.alloc(100_000), { fin: true });
    client.ask(2);
    await client.echoes(2);
    await client.leave();
  },

  async tokens() {
    const byField = await Client.open(more, undefined, { headers: { Authorization: "Bearer the-secret-of-bob" } });
    assert.equal(byField.socket.protocol, "");
    byField.ask(1);
    await byField.echoes(1);
    await byField.leave();
    const byProtocol = await Client.open(more, ["acp", "bearer.the-secret-of-alice"], { origin: "https://app.example" });
    assert.equal(byProtocol.socket.protocol, "acp");
    byProtocol.ask(1);
    await byProtocol.echoes(1);
    await byProtocol.leave();
    const open = await Client.open(url, ["acp"]);
    assert.equal(open.socket.protocol, "acp");
    await open.leave();
  },

  async refusals() {
    const token = { Authorization: "Bearer the-secret-of-alice" };
    const expected = [
      [401, more, ["acp", "bearer.wrong"], {}],
      [401, more, [], {}],
      [403, more, [], { origin: "https://evil.example", headers: token }],
      [403, url, [], { origin: "https://app.example" }],
      [404, `${url}/more`, [], {}],
      [426, url, [], { protocolVersion: 8 }],
    ];
    for (const [status, where, protocols, options] of expected) {
      const found = await refusal(where, protocols, options);
      assert.equal(found.status, status, `${where}: ${JSON.stringify(found.body)}`);
      assert.equal(found.body.status, status);
      assert.ok(found.body.message);
      if (status === 401) assert.match(found.fields["www-authenticate"], /^Bearer/);
    }
  },

  async closing() {
    for (const [code, answered] of [[1000, 1000], [1001, 1001], [4321, 4321], [undefined, 1005]]) {
      const client = await Client.open(url);
      client.ask(1);
      await client.echoes(1);
      assert.equal(await client.leave(code), answered);
    }
  },

  async too_long() {
    const client = await Client.open(url);
    client.ask(1);
    await client.echoes(1);
    client.ask(2, { text: "x".repeat(1 << 20) });
    const { code, reason } = await client.closed;
    assert.equal(code, 1009);
    assert.ok(reason, "without a reason");
  },

  async not_utf8() {
    const client = await Client.open(url);
    client.socket.send(Buffer.from('{"jsonrpc":"2.0","id":1,"method":"\xc3', "latin1"), { binary: false, fin: false });
    client.socket.send(Buffer.from('\xff"}', "latin1"), { binary: false });
    assert.equal((await client.closed).code, 1007);
  },

  async compression_is_not_agreed_on() {
    const client = new Client(url, undefined, { perMessageDeflate: true });
    const [[response]] = await Promise.all([once(client.socket, "upgrade"), once(client.socket, "open")]);
    assert.ok(response.headers["acp-connection-id"]);
    assert.equal(client.socket.extensions, "");
    client.ask(1, { text: "x".repeat(10_000) });
    await client.echoes(1, { text: "x".repeat(10_000) });
    await client.leave();
  },

  async a_unix_socket() {
    // The daemon prints such addresses in this library's syntax.
    const client = await Client.open(unix);
    client.ask(1);
    await client.echoes(1);
    assert.equal(await client.leave(1000), 1000);
  },

  // The answer arrives while the daemon drains, then its close frame.
  async drained() {
    const client = await Client.open(url);
    const message = { jsonrpc: "2.0", id: 1, method: "hold", sessionId: "npm", params: { fifo: more } };
    client.socket.send(JSON.stringify(message));
    assert.equal((await client.next()).method, "heard");
    console.log("heard");
    assert.equal((await client.next()).result, "late");
    const { code } = await client.closed;
    assert.equal(code, 1001);
  },
};

await cases[name]();
