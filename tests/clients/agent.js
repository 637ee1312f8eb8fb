// An ACP agent on a TypeScript SDK: `node agent.js 1|2`. It numbers its sessions from 0, like real agents, so that
// those of two agents always collide. A prompt's text chooses the action, and every answer repeats the prompt.
import { Readable, Writable } from "node:stream";
import { sdk } from "./acp.js";

const acp = await sdk(process.argv[2]);
const sessions = new Map();

function session(id) {
  const known = sessions.get(id);
  if (!known) throw new Error(`session ${id} is not mine`);
  return known;
}

async function prompt({ sessionId, prompt: [{ text }] }, client) {
  const here = session(sessionId);
  const say = (words) =>
    client.notify("session/update", {
      sessionId,
      update: { sessionUpdate: "agent_message_chunk", content: { type: "text", text: words } },
    });
  if (text.includes("crash")) process.exit(1);
  await say(`heard ${text}`);
  if (text.includes("wait")) {
    await new Promise((resolve) => (here.cancelled = resolve));
    return { stopReason: "cancelled" };
  }
  const { outcome } = await client.request("session/request_permission", {
    sessionId,
    toolCall: { toolCallId: "call", title: text },
    options: [{ optionId: `allow ${text}`, name: "Allow", kind: "allow_once" }],
  });
  await say(`may ${outcome.optionId}`);
  const { content } = await client.request("fs/read_text_file", { sessionId, path: `/${text}` });
  await say(`read ${content}`);
  return { stopReason: "end_turn" };
}

acp
  .agent({ name: "test-agent" })
  .onRequest("initialize", () => ({ protocolVersion: acp.PROTOCOL_VERSION, agentCapabilities: {} }))
  .onRequest("session/new", () => {
    const sessionId = String(sessions.size);
    sessions.set(sessionId, {});
    return { sessionId };
  })
  .onRequest("session/prompt", (context) => prompt(context.params, context.client))
  .onNotification("session/cancel", (context) => session(context.params.sessionId).cancelled?.())
  .connect(acp.ndJsonStream(Writable.toWeb(process.stdout), Readable.toWeb(process.stdin)));
