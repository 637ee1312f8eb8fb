// The endpoint of these tests: CopilotKit's aimock. `node mock.mjs` serves it until stdin ends and prints its URL.
import { LLMock } from "@copilotkit/aimock";
import { pathToFileURL } from "node:url";

export async function startMock() {
  const mock = new LLMock({ port: 0, logLevel: "silent", chunkSize: 5 });
  const usage = { prompt_tokens: 50, completion_tokens: 12, total_tokens: 62 };
  mock.onMessage("hello", { content: "Hello there, friend! ✓", usage });
  mock.onMessage("reason", { content: "So: four.", reasoning: "Two and two." });
  mock.onMessage("tools", { toolCalls: [{ name: "look", arguments: '{"where":"here"}' }] });
  mock.onMessage("cut short", { content: "It was a dark and", finishReason: "length" });
  mock.onMessage("forbidden", { content: "I", finishReason: "content_filter" });
  mock.onMessage("too fast", { error: { message: "slow down", type: "rate_limit_error" }, status: 429, retryAfter: 0 });
  mock.onMessage("overload", { error: { message: "busy", type: "server_error" }, status: 503 });
  mock.onMessage("no key", { error: { message: "who?", type: "invalid_request_error" }, status: 401 });
  mock.onMessage("break off", { content: "abcdefghijklmnopqrstuvwxyz" }, { truncateAfterChunks: 3 });
  mock.onMessage("slowly", { content: "x".repeat(100) }, { latency: 50 });
  mock.onMessage(/^client \d+$/, (request) => ({ content: `I hear ${request.messages.at(-1).content}.` }));
  await mock.start();
  return mock;
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? "").href) {
  const mock = await startMock();
  console.log(mock.url);
  process.stdin.resume();
  process.stdin.on("end", () => mock.stop().then(() => process.exit(0)));
}
