// The official MCP client against the reference server, over one TCP connection: `node mcp.js COUNT PORT`. The SDK has
// no transport for a plain socket, so this is one: lines of JSON, which is what its own stdio transport speaks.
import assert from "node:assert/strict";
import net from "node:net";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { ReadBuffer, serializeMessage } from "@modelcontextprotocol/sdk/shared/stdio.js";

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
        for (let message; (message = this.buffer.readMessage()) !== null; ) this.onmessage?.(message);
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

await Promise.all(Array.from({ length: Number(process.argv[2]) }, (_, number) => one(number)));
