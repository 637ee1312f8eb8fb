// The official MCP client against the reference server, over TCP: `node mcp.js COUNT PORT` runs COUNT clients at once,
// which send requests, and `node mcp.js hears PORT` one that receives the server's own messages. The SDK has no
// transport for a plain socket, so this is one: lines of JSON, as in its stdio transport.
import assert from "node:assert/strict";
import net from "node:net";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { ReadBuffer, serializeMessage } from "@modelcontextprotocol/sdk/shared/stdio.js";
import {
  CreateMessageRequestSchema,
  LoggingMessageNotificationSchema,
  ToolListChangedNotificationSchema,
} from "@modelcontextprotocol/sdk/types.js";

class SocketTransport {
  constructor(port) {
    this.port = port;
    this.buffer = new ReadBuffer();
  }
  start() {
    return new Promise((resolve, reject) => {
      this.socket = net.connect(this.port, "127.0.0.1", resolve);
      this.socket.on("error", reject);
      this.socket.on("close", () => this.onclose?.());
      this.socket.on("data", (data) => {
        this.buffer.append(data);
        // One at a time: the SDK drops a progress handler if the result arrives in the same tick.
        for (let message; (message = this.buffer.readMessage()) !== null; ) setImmediate(() => this.onmessage?.(message));
      });
    });
  }
  async send(message) {
    this.socket.write(serializeMessage(message));
  }
  async close() {
    this.socket.destroy();
  }
}

async function one(number) {
  const client = new Client({ name: `mcp-${number}`, version: "1" });
  await client.connect(new SocketTransport(Number(process.argv[3])));
  const { tools } = await client.listTools();
  assert.ok(tools.some((tool) => tool.name === "echo"), tools.map((tool) => tool.name).join());
  for (let turn = 0; turn < 10; turn++) {
    const message = `client ${number}, turn ${turn}`;
    const { content } = await client.callTool({ name: "echo", arguments: { message } });
    assert.ok(content[0].text.includes(message), content[0].text);
  }
  assert.ok((await client.listResources()).resources.length > 0);
  assert.ok((await client.listPrompts()).prompts.length > 0);
  await client.ping();
  await client.close();
}

// Messages without a session: progress, logs and changed lists arrive, and the server's own request is answered.
async function hears() {
  const client = new Client({ name: "mcp", version: "1" }, { capabilities: { sampling: {} } });
  const heard = (schema) => new Promise((resolve) => client.setNotificationHandler(schema, resolve));
  const changed = heard(ToolListChangedNotificationSchema);
  const logged = heard(LoggingMessageNotificationSchema);
  client.setRequestHandler(CreateMessageRequestSchema, ({ params }) => ({
    model: "none",
    role: "assistant",
    content: { type: "text", text: `sampled ${params.messages[0].content.text}` },
  }));
  await client.connect(new SocketTransport(Number(process.argv[3])));
  // The server offers this tool once it knows that the client supports sampling.
  await changed;
  const sampled = await client.callTool({ name: "trigger-sampling-request", arguments: { prompt: "a question" } });
  assert.match(sampled.content[0].text, /sampled .*a question/);
  const progress = [];
  await client.callTool(
    { name: "trigger-long-running-operation", arguments: { duration: 0.1, steps: 4 } },
    undefined,
    { onprogress: (step) => progress.push(step.progress) },
  );
  assert.deepEqual(progress, [1, 2, 3, 4]);
  await client.callTool({ name: "toggle-simulated-logging", arguments: {} });
  assert.match((await logged).params.data, /message/);
  await client.close();
}

if (process.argv[2] === "hears") await hears();
else await Promise.all(Array.from({ length: Number(process.argv[2]) }, (_, number) => one(number)));
