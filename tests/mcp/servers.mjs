// Official servers behind an MCP listener, called by the official client, which begins with the newer era and falls
// back to the older one if necessary: `node servers.mjs JSON`, with the listener's `urls` by pool, and the directory of
// writable `files`.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";

const { urls, files } = JSON.parse(process.argv[2]);

async function guest(pool, mode) {
  const isShared = pool.endsWith("-shared");
  // A shared server cannot ask for roots.
  const capabilities = isShared ? {} : { sampling: {}, elicitation: {}, roots: {} };
  const client = new Client({ name: `guest of ${pool}`, version: "1" }, { capabilities, versionNegotiation: { mode } });
  if (!isShared) {
    client.setRequestHandler("sampling/createMessage", ({ params }) => ({
      model: "none",
      role: "assistant",
      content: { type: "text", text: `sampled ${params.messages[0].content.text}` },
    }));
    client.setRequestHandler("elicitation/create", () => ({ action: "decline" }));
    client.setRequestHandler("roots/list", () => ({ roots: [{ uri: pathToFileURL(files).href, name: "files" }] }));
  }
  const transport = new StreamableHTTPClientTransport(new URL(urls[pool]));
  await client.connect(transport);
  const call = async (name, args, options) => {
    const result = await client.callTool({ name, arguments: args }, options);
    assert.ok(!result.isError, `${name}: ${JSON.stringify(result)}`);
    return result.content[0].text;
  };
  const end = async () => {
    if (transport.sessionId) await transport.terminateSession();
    await client.close();
  };
  return { client, call, end, isShared };
}

const servers = {
  async everything({ client, call, isShared }, number) {
    const message = `message ${number}`;
    assert.match(await call("echo", { message }), new RegExp(message));
    const steps = [];
    const onprogress = ({ progress }) => steps.push(progress);
    await call("trigger-long-running-operation", { duration: 0.2, steps: 4 }, { onprogress });
    assert.deepEqual(steps, [1, 2, 3, 4]);
    assert.ok((await client.listResources()).resources.length > 0);
    assert.ok((await client.listPrompts()).prompts.length > 0);
    if (isShared) return;
    // The server offers it once it knows that the client supports sampling.
    for (const end = Date.now() + 30_000; Date.now() < end; await new Promise((resolve) => setTimeout(resolve, 50)))
      if ((await client.listTools()).tools.some(({ name }) => name === "trigger-sampling-request")) break;
    assert.match(await call("trigger-sampling-request", { prompt: `question ${number}` }), new RegExp(`sampled .*question ${number}`));
  },

  async filesystem({ call, isShared }, number) {
    const path = join(files, `file ${isShared} ${number}`);
    // It learns its directories from the client's roots a moment after the handshake.
    for (const end = Date.now() + 30_000; Date.now() < end; await new Promise((resolve) => setTimeout(resolve, 50)))
      if ((await call("list_allowed_directories", {})).includes(files)) break;
    await call("write_file", { path, content: `content of ${number}` });
    assert.equal(readFileSync(path, "utf8"), `content of ${number}`);
    assert.equal(await call("read_text_file", { path }), `content of ${number}`);
    assert.match(await call("list_directory", { path: files }), new RegExp(`file ${isShared} ${number}`));
  },

  async memory({ call }, number) {
    const name = `somebody ${number} ${Math.random()}`;
    await call("create_entities", { entities: [{ name, entityType: "person", observations: ["is here"] }] });
    assert.match(await call("search_nodes", { query: name }), /is here/);
    await call("delete_entities", { entityNames: [name] });
  },
};

let failed = 0;
for (const pool of Object.keys(urls)) {
  const [, server] = pool.match(/^([a-z]+)(-shared)?$/);
  console.log(`begin ${pool}`);
  try {
    const begun = Date.now();
    const guests = await Promise.all([0, 1, 2, 3].map((number) => guest(pool, number % 2 === 0 ? "auto" : "legacy")));
    if (server === "memory") {
      // It reads and writes its file without a lock, so its clients take turns.
      for (const [number, one] of guests.entries()) await servers[server](one, number);
    } else {
      await Promise.all(guests.map((one, number) => servers[server](one, number)));
    }
    await Promise.all(guests.map((one) => one.end()));
    console.log(`ok ${pool} ${Date.now() - begun}`);
  } catch (error) {
    failed++;
    console.log(`not ok ${pool}: ${String(error.stack ?? error).split("\n").slice(0, 6).join(" | ")}`);
  }
}
process.exit(failed > 0 ? 1 : 0);
