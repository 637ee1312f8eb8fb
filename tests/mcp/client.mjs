// An official TypeScript client of either line against an MCP listener: `node client.mjs JSON`, with
//   line  "1" (@modelcontextprotocol/sdk) or "2" (@modelcontextprotocol/client)
//   era   "legacy", "modern", or "fallback": starts with the newer era against a server of the older one
//   pool  "own" or "shared": skips what a shared server of the older era lacks
//   url   of the listener, and `cut` of a proxy in front of it that cuts each session's connections once, mid-stream
//   restart a folder: only asks for a restart of the daemon there, between two calls
//   trust the trusted certificate: then it uses TLS and HTTP/2, and nothing is cut
// It prints each scenario and its result.
import assert from "node:assert/strict";
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

const { line, era, pool, url, cut, trust, restart } = JSON.parse(process.argv[2]);
const isModern = era === "modern";
// Without a session, each request has a process of its own in a dedicated pool: other processes do not report its
// changes.
const meets = !isModern || pool === "shared";
const hearsAll = isModern || pool === "own";
const { Client, Transport, schemas } = await (line === "1" ? older() : newer());
const secure = trust && (await overTls());
const folder = mkdtempSync(join(tmpdir(), "stdio-bus-mcp-"));

async function older() {
  const { Client } = await import("@modelcontextprotocol/sdk/client/index.js");
  const { StreamableHTTPClientTransport } = await import("@modelcontextprotocol/sdk/client/streamableHttp.js");
  const types = await import("@modelcontextprotocol/sdk/types.js");
  const schemas = {
    "sampling/createMessage": types.CreateMessageRequestSchema,
    "elicitation/create": types.ElicitRequestSchema,
    "roots/list": types.ListRootsRequestSchema,
    "notifications/message": types.LoggingMessageNotificationSchema,
    "notifications/tools/list_changed": types.ToolListChangedNotificationSchema,
    "notifications/resources/updated": types.ResourceUpdatedNotificationSchema,
  };
  return { Client, Transport: StreamableHTTPClientTransport, schemas };
}

async function newer() {
  const { Client, StreamableHTTPClientTransport } = await import("@modelcontextprotocol/client");
  return { Client, Transport: StreamableHTTPClientTransport };
}

async function overTls() {
  const { Agent, fetch } = await import("undici");
  const dispatcher = new Agent({ allowH2: true, connect: { ca: readFileSync(trust) }, bodyTimeout: 0 });
  return { fetch: (where, init) => fetch(where, { ...init, dispatcher }) };
}

const named = (method) => schemas?.[method] ?? method;

// A queue of received items.
class Queue {
  items = [];
  waiting = [];
  push(item) {
    const next = this.waiting.shift();
    if (next) next(item);
    else this.items.push(item);
  }
  next(what) {
    if (this.items.length > 0) return this.items.shift();
    return within(30_000, what, new Promise((resolve) => this.waiting.push(resolve)));
  }
}

function within(time, what, promise) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`hung for ${time} ms: ${what}`)), time);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

async function until(what, condition) {
  for (const end = Date.now() + 30_000; Date.now() < end; await new Promise((resolve) => setTimeout(resolve, 50)))
    if (condition()) return;
  throw new Error(`it never came to that: ${what}`);
}

function said(path) {
  try {
    return readFileSync(path, "utf8");
  } catch {
    return "";
  }
}

class Guest {
  static async of(name, at = url) {
    const guest = new Guest();
    const mode = { legacy: "legacy", modern: { pin: "2026-07-28" }, fallback: "auto" }[era];
    const capabilities = { sampling: {}, elicitation: {}, roots: { listChanged: true } };
    guest.client = new Client({ name, version: "1" }, { capabilities, ...(line === "2" && { versionNegotiation: { mode } }) });
    guest.asked = [];
    const answers = (method, answer) =>
      guest.client.setRequestHandler(named(method), (request) => {
        guest.asked.push(method);
        return answer(request);
      });
    answers("sampling/createMessage", ({ params }) => ({
      model: "none",
      role: "assistant",
      content: { type: "text", text: `${name} sampled ${params.messages[0].content.text}` },
    }));
    answers("elicitation/create", () => ({ action: "accept", content: { username: name, email: `${name}@example.com` } }));
    answers("roots/list", () => ({ roots: [{ uri: `file:///home/${name}`, name }] }));
    guest.logged = new Queue();
    guest.changed = new Queue();
    guest.updated = new Queue();
    guest.client.setNotificationHandler(named("notifications/message"), ({ params }) => guest.logged.push(params.data));
    guest.client.setNotificationHandler(named("notifications/tools/list_changed"), () => guest.changed.push(true));
    guest.client.setNotificationHandler(named("notifications/resources/updated"), ({ params }) => guest.updated.push(params.uri));
    guest.transport = new Transport(new URL(at), secure || undefined);
    await within(30_000, `the handshake of ${name}`, guest.client.connect(guest.transport));
    return guest;
  }

  async call(name, args = {}, options = {}, meta) {
    const params = { name, arguments: args, ...(meta && { _meta: meta }) };
    const called = line === "1" ? this.client.callTool(params, undefined, options) : this.client.callTool(params, options);
    const result = await within(45_000, `the answer to ${name}`, called);
    return result.content[0].text;
  }

  async end() {
    if (this.transport.sessionId) await within(30_000, "the end of a session", this.transport.terminateSession());
    await this.client.close();
  }
}

async function slow(guest, name, time, steps) {
  const seen = [];
  const told = await guest.call("slow", { name, time, steps }, { onprogress: ({ progress }) => seen.push(progress) });
  assert.equal(told, `${name} is done`);
  const all = Array.from({ length: steps }, (_, at) => at + 1);
  assert.deepEqual(seen, all, `progress of ${name}`);
}

const scenarios = {
  async tools(guest) {
    if (line === "2") assert.equal(guest.client.getNegotiatedProtocolVersion(), isModern ? "2026-07-28" : "2025-11-25");
    const { tools } = await guest.client.listTools();
    assert.ok(tools.some(({ name }) => name === "echo"));
    assert.equal(await guest.call("echo", { text: "zwölf ☃ 𝄞" }), "zwölf ☃ 𝄞");
    const failed = await guest.client.callTool({ name: "test_error_handling", arguments: {} });
    assert.equal(failed.isError, true);
    await assert.rejects(guest.client.readResource({ uri: "test://nothing" }));
    assert.equal((await guest.client.readResource({ uri: "test://static-text" })).contents.length, 1);
    assert.equal((await guest.client.getPrompt({ name: "test_simple_prompt" })).messages.length, 1);
    const long = "x".repeat(500_000);
    assert.equal(await guest.call("echo", { text: long }), long);
  },

  async progress(guest) {
    await slow(guest, "a slow call", 200, 4);
  },

  async cancel(guest) {
    const stop = new AbortController();
    const fate = join(folder, "cancelled");
    const called = guest.call("slow", { name: "cancelled", time: 30_000, steps: 300, fate }, {
      signal: stop.signal,
      onprogress: ({ progress }) => progress === 2 && stop.abort(),
    });
    await assert.rejects(called);
    await until("the server is notified of the cancellation", () => said(fate) === "cancelled\n");
    assert.equal(await guest.call("echo", { text: "after it" }), "after it");
  },

  async list_changed(guest) {
    for (let time = 0; time < 2; time++) {
      const listening = isModern && (await guest.client.listen({ toolsListChanged: true }));
      if (meets) {
        await guest.call("test_trigger_tool_change");
        await guest.changed.next("the notification of a changed list");
      }
      // A second time after a cancel.
      if (listening) await listening.close();
    }
  },

  async resource_updates(guest) {
    if (!hearsAll || !meets) return "left out";
    const [uri, other] = ["test://watched-resource", "test://static-text"];
    const listening = isModern && (await guest.client.listen({ resourceSubscriptions: [uri] }));
    if (!isModern) await guest.client.subscribeResource({ uri });
    if (isModern) await guest.call("touch", { uri: other });
    await guest.call("touch", { uri });
    assert.equal(await guest.updated.next("the notification of an updated resource"), uri);
    if (listening) await listening.close();
    else await guest.client.unsubscribeResource({ uri });
  },

  async sampling(guest) {
    if (!hearsAll) return "left out";
    assert.match(await guest.call("test_sampling", { prompt: "a question" }), /guest sampled a question/);
    assert.deepEqual(guest.asked.splice(0), ["sampling/createMessage"]);
  },

  async elicitation(guest) {
    if (!hearsAll) return "left out";
    assert.match(await guest.call("test_elicitation", { message: "who?" }), /guest@example.com/);
    assert.deepEqual(guest.asked.splice(0), ["elicitation/create"]);
  },

  async roots(guest) {
    if (!hearsAll) return "left out";
    assert.equal(await guest.call("test_input_required_result_list_roots"), "roots: file:///home/guest");
    assert.deepEqual(guest.asked.splice(0), ["roots/list"]);
  },

  async state(guest) {
    if (!isModern) return "left out";
    // Each round goes to the process that keeps the state.
    for (let time = 0; time < 5; time++) {
      const { client } = guest;
      client.setRequestHandler("elicitation/create", () => ({ action: "accept", content: { ok: true } }));
      assert.match(await guest.call("test_input_required_result_request_state"), /state-ok/);
    }
  },

  async logging(guest) {
    // A shared server's logs name no client.
    if (pool === "shared") return "left out";
    if (!isModern) await guest.client.setLoggingLevel("info");
    const meta = isModern ? { "io.modelcontextprotocol/logLevel": "info" } : undefined;
    await guest.call("test_tool_with_logging", {}, {}, meta);
    assert.equal(await guest.logged.next("the first message of the log"), "Tool execution started");
    assert.equal(await guest.logged.next("the second message of the log"), "Tool processing data");
    assert.equal(await guest.logged.next("the third message of the log"), "Tool execution completed");
  },

  async reconnect() {
    if (!cut) return "left out";
    const guest = await Guest.of("cut off", cut);
    if (isModern) {
      // There is nothing to resume, and the call is cancelled at the server. This client does not notice by itself.
      const fate = join(folder, "cut");
      const stop = new AbortController();
      const args = { name: "cut", time: 20_000, steps: 100, fate };
      const lost = assert.rejects(guest.call("slow", args, { signal: stop.signal, onprogress: () => {} }));
      await until("the server is notified that its client is gone", () => said(fate) === "cancelled\n");
      stop.abort();
      await lost;
      assert.equal(await guest.call("echo", { text: "after it" }), "after it");
    } else {
      await slow(guest, "cut", 1500, 5);
      // The stream of the session was cut as well, and is open again.
      await guest.call("test_trigger_tool_change");
      await guest.changed.next("the notification of a changed list after a cut");
    }
    await guest.end();
  },

  async restart() {
    const guest = await Guest.of("restarted");
    assert.equal(await guest.call("echo", { text: "before it" }), "before it");
    writeFileSync(join(restart, "asks"), "");
    await until("the daemon runs again", () => existsSync(join(restart, "done")));
    assert.equal(await guest.call("echo", { text: "after it" }), "after it");
    await guest.end();
  },

  async two_at_once() {
    await many(2);
  },

  async sixteen_at_once() {
    await many(16);
  },
};

async function many(count) {
  const guests = await Promise.all(Array.from({ length: count }, (_, at) => Guest.of(`guest ${at} of ${count}`)));
  await Promise.all(
    guests.map(async (guest, at) => {
      for (let turn = 0; turn < 3; turn++) {
        const text = `guest ${at}, turn ${turn}`;
        // The tokens and ids of all clients are the same, and the number of their steps distinguishes them.
        await Promise.all([
          guest.call("echo", { text }).then((said) => assert.equal(said, text)),
          slow(guest, text, 100, 2 + (at % 5)),
        ]);
      }
      if (hearsAll) assert.match(await guest.call("test_sampling", { prompt: "x" }), new RegExp(`^LLM response: guest ${at} of`));
    }),
  );
  await Promise.all(guests.map((guest) => guest.end()));
}

const usual = Object.keys(scenarios).filter((name) => name !== "restart");
const wanted = restart ? ["restart"] : era === "fallback" ? ["tools", "progress"] : usual;
const guest = restart ? undefined : await Guest.of("guest");
let failed = 0;
for (const name of wanted) {
  console.log(`begin ${name}`);
  const begun = Date.now();
  try {
    const told = await scenarios[name](guest);
    console.log(told ? `skip ${name}` : `ok ${name} ${Date.now() - begun}`);
  } catch (error) {
    failed++;
    console.log(`not ok ${name}: ${String(error.stack ?? error).split("\n").slice(0, 6).join(" | ")}`);
  }
}
await guest?.end();
rmSync(folder, { recursive: true });
process.exit(failed > 0 ? 1 : 0);
