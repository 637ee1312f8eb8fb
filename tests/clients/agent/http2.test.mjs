// HTTP/2 over TLS, served by node: many prompts at once, more than one connection's worth, and cancelling.
import assert from "node:assert/strict";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { createSecureServer } from "node:http2";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import * as acp from "@agentclientprotocol/sdk";
import { withAgent } from "./support.mjs";

const file = (name) => fileURLToPath(new URL(`../../../crates/openai-agent/tests/agent/${name}`, import.meta.url));
const delta = (text) => `data: ${JSON.stringify({ choices: [{ index: 0, delta: { content: text } }] })}\n\n`;

test("two hundred prompts stream at once over HTTP/2, and a cancelled one is reset", async () => {
  const PROMPTS = 200;
  const versions = new Set();
  let streams = 0;
  let waiting = [];
  let reset;
  const sawReset = new Promise((wake) => (reset = wake));
  const server = createSecureServer({
    cert: readFileSync(file("certificate.pem")),
    key: readFileSync(file("key.pem")),
    settings: { maxConcurrentStreams: 100 },
  });
  server.on("sessionError", () => {});
  const sessions = new Set();
  server.on("session", (session) => sessions.add(session));
  server.on("stream", async (stream, headers) => {
    stream.on("error", () => {});
    versions.add("2");
    assert.equal(headers[":path"], "/v1/chat/completions");
    let body = "";
    for await (const piece of stream) body += piece;
    const said = JSON.parse(body).messages.at(-1).content;
    stream.respond({ ":status": 200, "content-type": "text/event-stream" });
    stream.write(delta(said));
    if (said === "for ever") {
      stream.on("close", reset);
      return;
    }
    // None goes on before all have begun.
    streams += 1;
    waiting.push(stream);
    if (streams === PROMPTS) {
      for (const each of waiting.splice(0)) each.end(`${delta("!")}data: [DONE]\n\n`);
    }
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const env = { OPENAI_BASE_URL: `https://localhost:${server.address().port}/v1`, OPENAI_CA_FILE: file("certificate.pem") };
  try {
    await withAgent(env, async ({ context, newSession, nextUpdate }) => {
      const sessions = await Promise.all(Array.from({ length: PROMPTS }, newSession));
      const answers = await Promise.all(sessions.map((session, index) => session.prompt(`number ${index}`)));
      answers.forEach((answer, index) => assert.equal(answer.text, `number ${index}!`));
      const running = sessions[0].prompt("for ever");
      await nextUpdate();
      await context.notify(acp.methods.agent.session.cancel, { sessionId: sessions[0].id });
      assert.equal((await running).stopReason, "cancelled");
      await sawReset;
    });
    assert.deepEqual([...versions], ["2"]);
    assert.ok(sessions.size >= 2, "a full connection does not make prompts wait");
  } finally {
    for (const session of sessions) session.destroy();
    server.close();
  }
});
