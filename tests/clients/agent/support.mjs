// Starts the agent or the bus, and connects the official TypeScript SDK to it.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { connect, createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { Readable, Writable } from "node:stream";
import * as acp from "@agentclientprotocol/sdk";

export const agentProgram = process.env.OPENAI_AGENT_BIN;
export const busProgram = process.env.STDIO_BUS_BIN;
if (!agentProgram) throw new Error("OPENAI_AGENT_BIN names the agent; scripts/test-agent sets it");

/** The agent's environment: ours without variables that would affect it. */
export function environment(more) {
  const own = Object.entries(process.env).filter(([name]) => !/^OPENAI_(?!AGENT_BIN)|_proxy$|^SSL_CERT_/i.test(name));
  // Failures that the tests cause are not logged.
  return { OPENAI_LOG: "error", ...Object.fromEntries(own), ...more };
}

/** The SDK client's handlers: updates by session, and requests through `ask`. */
class Session {
  constructor(context, updates, id, created) {
    Object.assign(this, { context, updates, id, created });
  }

  async prompt(text, options) {
    const before = this.updates.length;
    const prompt = typeof text === "string" ? [{ type: "text", text }] : text;
    const result = await this.context.request(acp.methods.agent.session.prompt, { sessionId: this.id, prompt }, options);
    const mine = this.updates.slice(before).filter((update) => update.sessionId === this.id).map(({ update }) => update);
    const text_of = (kind) => mine.filter((u) => u.sessionUpdate === kind).map((u) => u.content.text).join("");
    return { ...result, updates: mine, text: text_of("agent_message_chunk"), thought: text_of("agent_thought_chunk") };
  }
}

/** Runs `use(client)` with an SDK client on a stream. */
export function withClient(stream, use) {
  const updates = [];
  const waiting = [];
  const app = acp.client({ name: "tests" });
  app.onNotification(acp.methods.client.session.update, ({ params }) => {
    updates.push(params);
    // The session's title is sent before the model is called.
    if (params.update.sessionUpdate === "session_info_update") return;
    waiting.splice(0).forEach((wake) => wake());
  });
  return app.connectWith(stream, async (context) => {
    const initialized = await context.request(acp.methods.agent.initialize, {
      protocolVersion: acp.PROTOCOL_VERSION,
      clientCapabilities: { fs: { readTextFile: true, writeTextFile: true }, terminal: true },
      clientInfo: { name: "tests", version: "1" },
    });
    const newSession = async () => {
      const created = await context.request(acp.methods.agent.session.new, { cwd: "/work", mcpServers: [] });
      return new Session(context, updates, created.sessionId, created);
    };
    const nextUpdate = () => new Promise((wake) => waiting.push(wake));
    return use({ context, initialized, newSession, updates, nextUpdate });
  });
}

/** Runs `use(client)` with an agent of its own, and stops the agent. */
export async function withAgent(env, use) {
  const child = spawn(agentProgram, ["acp"], { env: environment(env), stdio: ["pipe", "pipe", "inherit"] });
  const exited = once(child, "exit");
  try {
    const stream = acp.ndJsonStream(Writable.toWeb(child.stdin), Readable.toWeb(child.stdout));
    const result = await withClient(stream, use);
    child.stdin.end();
    const [code] = await exited;
    if (code !== 0) throw new Error(`the agent ended with ${code}`);
    return result;
  } finally {
    child.kill("SIGKILL");
    await exited;
  }
}

async function freePort() {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address();
  await new Promise((closed) => server.close(closed));
  return port;
}

/** Waits until the port is open, or its server has exited. */
async function listening(port, child, log) {
  for (;;) {
    if (child.exitCode !== null) throw new Error(`the bus ended:\n${log.join("\n")}`);
    const socket = connect(port, "127.0.0.1");
    const [outcome] = await Promise.race([once(socket, "connect").then(() => ["open"]), once(socket, "error")]).catch((error) => [error]);
    socket.destroy();
    if (outcome === "open") return;
    await new Promise((again) => setTimeout(again, 5));
  }
}

/** Runs `use(port)` with a bus whose pool is four agents. */
export async function withBus(env, pool, use) {
  const dir = mkdtempSync(join(tmpdir(), "openai-agent-"));
  const file = join(dir, "bus.json");
  const openai = { id: "openai", command: agentProgram, args: ["acp"], instances: 4, assignment: "client", env, ...pool };
  writeFileSync(file, JSON.stringify({ pools: [openai] }));
  const port = await freePort();
  const arguments_ = ["--config", file, "--tcp", `127.0.0.1:${port}`];
  const child = spawn(busProgram, arguments_, { env: environment({}), stdio: ["ignore", "ignore", "pipe"] });
  const log = [];
  createInterface({ input: child.stderr }).on("line", (line) => log.push(line));
  const exited = once(child, "exit");
  try {
    await listening(port, child, log);
    const result = await use(port);
    child.kill("SIGTERM");
    const [code] = await exited;
    if (code !== 0) throw new Error(`the bus ended with ${code}`);
    return result;
  } finally {
    child.kill("SIGKILL");
    await exited;
    rmSync(dir, { recursive: true });
  }
}

/** Runs `use(client)` with a client on the bus's port. */
export async function withBusClient(port, use) {
  const socket = connect(port, "127.0.0.1");
  await once(socket, "connect");
  try {
    return await withClient(acp.ndJsonStream(Writable.toWeb(socket), Readable.toWeb(socket)), use);
  } finally {
    socket.destroy();
  }
}
