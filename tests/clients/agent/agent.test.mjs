// openai-agent between other projects' programs: the official TypeScript SDK as the client, aimock as the endpoint.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import * as acp from "@agentclientprotocol/sdk";
import { startMock } from "./mock.mjs";
import { withAgent } from "./support.mjs";

let mock, base;
before(async () => {
  mock = await startMock();
  base = { OPENAI_BASE_URL: `${mock.url}/v1`, OPENAI_API_KEY: "test" };
});
after(() => mock.stop());

test("the SDK accepts the handshake", () =>
  withAgent(base, async ({ context, initialized, newSession }) => {
    assert.equal(initialized.protocolVersion, 1);
    assert.equal(initialized.agentInfo.name, "openai-agent");
    assert.equal(initialized.agentCapabilities.promptCapabilities.embeddedContext, true);
    await context.request(acp.methods.agent.authenticate, { methodId: initialized.authMethods[0].id });
    const { id, created } = await newSession();
    assert.equal(created.configOptions[0].currentValue, "gpt-4o");
    const set = await context.request(acp.methods.agent.session.setConfigOption, { sessionId: id, configId: "model", value: "gpt-5" });
    assert.equal(set.configOptions[0].currentValue, "gpt-5");
    await context.request("session/set_model", { sessionId: id, modelId: "gpt-4o" });
    const { sessions } = await context.request(acp.methods.agent.session.list, {});
    assert.deepEqual(sessions.map((session) => [session.sessionId, session.cwd]), [[id, "/work"]]);
    await context.request(acp.methods.agent.session.close, { sessionId: id });
    await assert.rejects(context.request(acp.methods.agent.session.prompt, { sessionId: id, prompt: [{ type: "text", text: "x" }] }), { code: -32002 });
    await assert.rejects(context.request(acp.methods.agent.session.load, { sessionId: id, cwd: "/", mcpServers: [] }), { code: -32601 });
  }));

test("text, counts, reasoning, tools and lengths arrive as ACP names them", () =>
  withAgent(base, async ({ newSession }) => {
    const session = await newSession();
    const hello = await session.prompt("hello");
    assert.equal(hello.text, "Hello there, friend! ✓");
    assert.equal(hello.stopReason, "end_turn");
    assert.equal(hello.updates[0].sessionUpdate, "session_info_update");
    assert.equal(hello.updates[0].title, "hello");
    const texts = hello.updates.filter((update) => update.sessionUpdate === "agent_message_chunk");
    assert.ok(texts.length > 3, "it streams");
    assert.equal(new Set(texts.map((update) => update.messageId)).size, 1);
    assert.deepEqual(hello.updates.at(-1), { sessionUpdate: "usage_update", used: 62, size: 128000 });
    const reasoned = await (await newSession()).prompt("reason");
    assert.deepEqual([reasoned.thought, reasoned.text], ["Two and two.", "So: four."]);
    assert.equal((await (await newSession()).prompt("tools")).stopReason, "end_turn");
    assert.equal((await (await newSession()).prompt("cut short")).stopReason, "max_tokens");
    assert.equal((await (await newSession()).prompt("forbidden")).stopReason, "refusal");
  }));

test("the errors of the endpoint are reported in words", () =>
  withAgent({ ...base, OPENAI_MAX_RETRIES: "1" }, async ({ newSession }) => {
    const url = `${mock.url}/v1/chat/completions`;
    const say = async (text) => (await (await newSession()).prompt(text)).text;
    mock.clearRequests();
    assert.equal(
      await say("too fast"),
      `Rate limit exceeded (HTTP 429) calling ${url}. Please retry later. It says: slow down`,
    );
    assert.equal(mock.getRequests().length, 2, "it was tried again once");
    assert.equal(await say("overload"), `Server error (HTTP 503) from ${url}. It says: busy`);
    assert.equal(
      await say("no key"),
      `Authentication error (HTTP 401) calling ${url}. Check your OPENAI_API_KEY. It says: who?`,
    );
    assert.match(await say("break off"), /Network error connecting to /);
  }));

test("errors are JSON-RPC errors when that is wanted", () =>
  withAgent({ ...base, OPENAI_ERRORS: "jsonrpc", OPENAI_MAX_RETRIES: "0" }, async ({ newSession }) => {
    await assert.rejects((await newSession()).prompt("no key"), { code: -32000 });
    await assert.rejects((await newSession()).prompt("overload"), { code: -32603 });
  }));

test("a prompt is cancelled, and the next one works", () =>
  withAgent(base, async ({ context, newSession, nextUpdate }) => {
    const session = await newSession();
    const running = session.prompt("slowly");
    await nextUpdate();
    await context.notify(acp.methods.agent.session.cancel, { sessionId: session.id });
    assert.equal((await running).stopReason, "cancelled");
    assert.equal((await session.prompt("hello")).text, "Hello there, friend! ✓");
    const { messages } = mock.getLastRequest().body;
    assert.deepEqual(messages, [{ role: "user", content: "slowly\n\nhello" }], "what the user said is kept");
  }));

test("the SDK's abort signal cancels the request", () =>
  withAgent(base, async ({ newSession, nextUpdate }) => {
    const session = await newSession();
    const abort = new AbortController();
    const running = session.prompt("slowly", { cancellationSignal: abort.signal });
    await nextUpdate();
    abort.abort();
    await assert.rejects(running, { code: -32800 });
    assert.equal((await session.prompt("hello")).stopReason, "end_turn");
  }));

test("Azure's paths and header are used", () => {
  const env = { OPENAI_BASE_URL: `${mock.url}/openai/deployments/gpt-4o`, OPENAI_API_VERSION: "2024-10-21", OPENAI_API_KEY: "azure-key" };
  return withAgent(env, async ({ newSession }) => {
    assert.equal((await (await newSession()).prompt("hello")).text, "Hello there, friend! ✓");
    const { headers, path } = mock.getLastRequest();
    assert.match(path, /^\/openai\/deployments\/gpt-4o\/chat\/completions/);
    assert.equal(headers.authorization, undefined);
  });
});

test("chaos ends every turn in words, and the agent survives it", () =>
  withAgent({ ...base, OPENAI_MAX_RETRIES: "0" }, async ({ newSession }) => {
    for (const [chaos, words] of [
      [{ dropRate: 1 }, /^Server error \(HTTP 500\)/],
      [{ malformedRate: 1 }, /^(Unexpected answer|Network error|Error from)/],
      [{ rateLimitRate: 1 }, /^Rate limit exceeded/],
      [{ disconnectRate: 1 }, /^Network error/],
    ]) {
      mock.setChaos(chaos);
      const { text, stopReason } = await (await newSession()).prompt("hello");
      assert.match(text, words);
      assert.equal(stopReason, "end_turn");
    }
    mock.clearChaos();
    assert.equal((await (await newSession()).prompt("hello")).text, "Hello there, friend! ✓");
  }));

test("retries get through a storm of dropped requests", () =>
  withAgent({ ...base, OPENAI_MAX_RETRIES: "1" }, async ({ newSession }) => {
    mock.nextRequestError(503, { message: "once" });
    assert.equal((await (await newSession()).prompt("hello")).text, "Hello there, friend! ✓");
  }));

test("the models of the endpoint are offered when that is wanted", () =>
  withAgent({ ...base, OPENAI_MODELS: "fetch" }, async ({ newSession }) => {
    const { created } = await newSession();
    assert.ok(created.configOptions[0].options.length >= 1);
  }));

test("blocks of all kinds are sent as the table says", () =>
  withAgent({ ...base, OPENAI_IMAGE_INPUT: "1" }, async ({ newSession }) => {
    await (await newSession()).prompt([
      { type: "text", text: "hello" },
      { type: "resource_link", uri: "file:///a", name: "a" },
      { type: "resource", resource: { uri: "file:///b", text: "inside" } },
      { type: "image", mimeType: "image/png", data: "QUJD" },
    ]);
    const parts = mock.getLastRequest().body.messages.at(-1).content;
    assert.equal(parts[0].text, "hello\n[Resource: a] file:///a\n[Resource: file:///b]\ninside");
    assert.equal(parts[1].image_url.url, "data:image/png;base64,QUJD");
  }));
