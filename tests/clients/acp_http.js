// The official TypeScript client of ACP's Streamable HTTP, unmodified, where what it meets is special:
// `node acp_http.js URL SCENARIO`. The agent is agent_http.py.
import assert from "node:assert/strict";
import * as acp from "@agentclientprotocol/sdk";
import { createHttpStream } from "@agentclientprotocol/sdk/experimental/http-client";

const [url, scenario] = process.argv.slice(2);

// A client of its own connection. `asked` has the requests of its transport, whose fetch can be cut.
async function connect(run) {
  const asked = [];
  const cuts = new Map();
  const fetch = async (input, init) => {
    const headers = new Headers(init.headers);
    const cut = new AbortController();
    const signal = AbortSignal.any([cut.signal, ...(init.signal ? [init.signal] : [])]);
    if (init.method === "GET") cuts.set(headers.get("Acp-Session-Id") ?? "", cut);
    const response = await globalThis.fetch(input, { ...init, signal });
    asked.push({ method: init.method, status: response.status, id: headers.get("Acp-Connection-Id"), headers: response.headers });
    return response;
  };
  const stream = createHttpStream(url, { fetch });
  const heard = [];
  try {
    await acp
      .client({ name: "http" })
      .onRequest("session/request_permission", ({ params }) => ({
        outcome: { outcome: "selected", optionId: params.options[0].optionId },
      }))
      .onNotification("session/update", ({ params }) => void heard.push([params.sessionId, params.update.content.text]))
      .connectWith(stream, async (agent) => {
        const initialized = await agent.request("initialize", { protocolVersion: acp.PROTOCOL_VERSION });
        assert.equal(initialized.protocolVersion, acp.PROTOCOL_VERSION);
        const open = async () => (await agent.request("session/new", { cwd: "/", mcpServers: [] })).sessionId;
        const prompt = (sessionId, text) => agent.request("session/prompt", { sessionId, prompt: [{ type: "text", text }] });
        await run({ agent, open, prompt, heard, asked, cuts });
      });
  } finally {
    await stream.writable.close().catch(() => {});
  }
  return asked;
}

const of = (heard, session) => heard.filter(([name]) => name === session).map(([, text]) => text);
const until = async (condition) => {
  while (!condition()) await new Promise((resolve) => setTimeout(resolve, 10));
};

const scenarios = {
  // Two sessions of one connection, each on its own stream, at once.
  async sessions() {
    await connect(async ({ open, prompt, heard }) => {
      const [one, other] = [await open(), await open()];
      assert.notEqual(one, other);
      const turns = [one, other].flatMap((session) => [1, 2, 3].map((turn) => prompt(session, `${session} ${turn}`)));
      for (const { stopReason } of await Promise.all(turns)) assert.equal(stopReason, "end_turn");
      await until(() => heard.length === 6);
      for (const session of [one, other]) {
        assert.deepEqual(of(heard, session).sort(), [1, 2, 3].map((turn) => `heard ${session} ${turn}`));
      }
    });
  },
  // 5 MiB both ways.
  async long() {
    await connect(async ({ open, prompt, heard }) => {
      const session = await open();
      const text = "x".repeat(5 << 20);
      assert.equal((await prompt(session, text)).stopReason, "end_turn");
      await until(() => heard.length === 1);
      assert.equal(heard[0][1], `heard ${text}`);
    });
  },
  // The stream of one session breaks: its request fails, and the next one opens the stream anew.
  async broken() {
    await connect(async ({ open, prompt, heard, asked, cuts, agent }) => {
      const [one, other] = [await open(), await open()];
      await prompt(one, "before");
      const waiting = prompt(one, "wait");
      waiting.catch(() => {});
      await until(() => of(heard, one).includes("heard wait"));
      // As a network does, not as the client itself would.
      cuts.get(one).abort(new TypeError("terminated"));
      assert.equal((await prompt(other, "meanwhile")).stopReason, "end_turn");
      const streams = asked.filter(({ method, status }) => method === "GET" && status === 200).length;
      assert.ok(streams >= 3, `${streams} streams were open`);
      await agent.notify("session/cancel", { sessionId: other });
    }).catch((error) => {
      // This client gives its connection up when any stream breaks with an error.
      assert.match(String(error), /terminated|closed|abort/i);
    });
  },
  // It sends DELETE when it leaves, and its connection is unknown then.
  async leaves() {
    const asked = await connect(async ({ open, prompt }) => {
      assert.equal((await prompt(await open(), "last words")).stopReason, "end_turn");
    });
    await until(() => asked.some(({ method }) => method === "DELETE"));
    const { status, id } = asked.find(({ method }) => method === "DELETE");
    assert.equal(status, 202);
    const late = await fetch(url, {
      method: "POST",
      headers: { "Content-Type": "application/json", "Acp-Connection-Id": id },
      body: JSON.stringify({ jsonrpc: "2.0", id: 9, method: "session/new", params: { cwd: "/", mcpServers: [] } }),
    });
    assert.equal(late.status, 404);
  },
};

await scenarios[scenario]();
process.exit(0);
