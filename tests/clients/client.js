// ACP clients on a TypeScript SDK: `node client.js SDK COUNT INITIALIZES SCENARIO ADDRESS...`. COUNT of them run at
// once and use the addresses in turn. Each checks that it receives its own messages, in order, and no others.
import assert from "node:assert/strict";
import net from "node:net";
import { Readable, Writable } from "node:stream";
import { createHttpStream } from "@agentclientprotocol/sdk/experimental/http-client";
import { createWebSocketStream } from "@agentclientprotocol/sdk/experimental/ws-client";
import { WebSocket } from "ws";
import { sdk } from "./acp.js";

const [major, count, initializes, scenario, ...addresses] = process.argv.slice(2);
const acp = await sdk(major);

// A stream of messages, and how to disconnect its client.
async function connect(address) {
  const [kind, rest] = [address.slice(0, address.indexOf(":")), address.slice(address.indexOf(":") + 1)];
  if (kind === "http" || kind === "https") {
    const stream = createHttpStream(address);
    // Its end sends DELETE.
    return { stream, leave: () => stream.writable.close().catch(() => {}) };
  }
  if (kind === "ws") {
    let socket;
    // The stream does not expose its socket.
    class Shown extends WebSocket {
      constructor(...args) {
        super(...args);
        socket = this;
      }
    }
    const stream = createWebSocketStream(address, { WebSocket: Shown });
    return { stream, leave: () => closed(socket) };
  }
  const target = kind === "unix" ? { path: rest } : { host: "127.0.0.1", port: Number(rest) };
  const socket = await new Promise((resolve, reject) => {
    const socket = net.connect(target, () => resolve(socket)).on("error", reject);
  });
  return { stream: acp.ndJsonStream(Writable.toWeb(socket), Readable.toWeb(socket)), leave: () => socket.destroy() };
}

// Closes like the SDK, without a code, and checks that the other end has answered, or was closing itself because the
// worker has ended.
async function closed(socket) {
  if (socket.readyState === WebSocket.CLOSED) return;
  const answered = new Promise((resolve) => socket.once("close", resolve));
  socket.close();
  const code = await answered;
  assert.ok(code === 1005 || code === 1011, `the close frame was not answered: ${code}`);
}

// One client with its own socket; `run` gets what every scenario needs.
async function client(number, run) {
  const { stream, leave } = await connect(addresses[number % addresses.length]);
  const name = `sdk${major}-${process.pid}-${number}`;
  const heard = [];
  const onHeard = [];
  const handlers = {
    async requestPermission({ toolCall, options }) {
      assert.ok(toolCall.title.startsWith(`${name} `), `${name} was asked about ${toolCall.title}`);
      return { outcome: { outcome: "selected", optionId: options[0].optionId } };
    },
    async readTextFile({ path }) {
      assert.ok(path.startsWith(`/${name} `), `${name} was asked for ${path}`);
      return { content: `content of ${path}` };
    },
    async sessionUpdate({ update }) {
      heard.push(update.content.text);
      onHeard.shift()?.();
    },
  };
  const words = (text) => [{ type: "text", text }];
  const together = async (agent) => {
    for (let turn = 0; turn < Number(initializes); turn++) {
      await agent.initialize({ protocolVersion: acp.PROTOCOL_VERSION, clientCapabilities: { fs: { readTextFile: true } } });
    }
    const { sessionId } = await agent.newSession({ cwd: "/", mcpServers: [] });
    const prompt = (text) => agent.prompt({ sessionId, prompt: words(`${name} ${text}`) });
    const nextHeard = () => new Promise((resolve) => onHeard.push(resolve));
    return await run({ name, heard, nextHeard, sessionId, prompt, cancel: () => agent.cancel({ sessionId }) });
  };
  try {
    if (acp.ClientSideConnection) {
      return await together(new acp.ClientSideConnection(() => handlers, stream));
    }
    return await acp
      .client({ name })
      .onRequest("session/request_permission", (context) => handlers.requestPermission(context.params))
      .onRequest("fs/read_text_file", (context) => handlers.readTextFile(context.params))
      .onNotification("session/update", (context) => handlers.sessionUpdate(context.params))
      .connectWith(stream, (agent) =>
        together({
          initialize: (params) => agent.request("initialize", params),
          newSession: (params) => agent.request("session/new", params),
          prompt: (params) => agent.request("session/prompt", params),
          cancel: (params) => agent.notify("session/cancel", params),
        }),
      );
  } finally {
    await leave();
  }
}

const scenarios = {
  // Prompts with permission requests and file reads, and one that is cancelled.
  async turns({ name, heard, nextHeard, prompt, cancel }) {
    for (let turn = 0; turn < 5; turn++) {
      heard.length = 0;
      const text = `${name} turn ${turn}`;
      assert.equal((await prompt(`turn ${turn}`)).stopReason, "end_turn");
      // The SDK may deliver the answer before an earlier update.
      while (heard.length < 3) await nextHeard();
      assert.deepEqual(heard, [`heard ${text}`, `may allow ${text}`, `read content of /${text}`]);
    }
    const begun = nextHeard();
    const waiting = prompt("wait");
    await begun;
    await cancel();
    assert.equal((await waiting).stopReason, "cancelled");
  },
  // The client dies in the middle of a prompt.
  async vanish({ nextHeard, prompt }) {
    const begun = nextHeard();
    prompt("wait").catch(() => {});
    await begun;
    console.log("in the middle of a prompt");
    process.kill(process.pid, "SIGKILL");
  },
  // The worker dies in the middle of a prompt, which is reported to the client.
  async crash({ prompt }) {
    await assert.rejects(prompt("crash"), (error) => error.data?.reason === "worker_exited");
  },
};

await Promise.all(Array.from({ length: Number(count) }, (_, number) => client(number, scenarios[scenario])));
