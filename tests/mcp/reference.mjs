// The everything-server over the SDK's own HTTP: the tests' expectations have to hold here before they say anything
// about the daemon. `node reference.mjs` prints its address.
import { createServer } from "node:http";
import { randomUUID } from "node:crypto";
import {
  WebStandardStreamableHTTPServerTransport,
  createMcpHandler,
  hostHeaderValidationResponse,
  isLegacyRequest,
  localhostAllowedHostnames,
  localhostAllowedOrigins,
  originValidationResponse,
} from "@modelcontextprotocol/server";
import { everything } from "./everything.mjs";

const handler = createMcpHandler(
  ({ era }) =>
    everything(era, {
      toolsChanged: () => handler.notify.toolsChanged(),
      promptsChanged: () => handler.notify.promptsChanged(),
      resourceUpdated: (_, uri) => handler.notify.resourceUpdated(uri),
    }),
  { legacy: "reject" },
);
const sessions = new Map();

// The events sent on a session's streams, so that a client that lost its connection gets the rest.
class Events {
  all = [];
  async storeEvent(stream, message) {
    const id = `${stream}_${this.all.length}`;
    this.all.push({ id, stream, message });
    return id;
  }
  async getStreamIdForEventId(id) {
    return this.all.find((event) => event.id === id)?.stream;
  }
  async replayEventsAfter(last, { send }) {
    const at = this.all.findIndex(({ id }) => id === last);
    const { stream } = this.all[at];
    for (const { id, message, ...event } of this.all.slice(at + 1)) if (event.stream === stream) await send(id, message);
    return stream;
  }
}

async function legacy(request) {
  const known = sessions.get(request.headers.get("mcp-session-id"));
  if (known) return known.handleRequest(request);
  if (request.headers.has("mcp-session-id")) {
    const error = { code: -32001, message: "Session not found" };
    return Response.json({ jsonrpc: "2.0", error, id: null }, { status: 404 });
  }
  const transport = new WebStandardStreamableHTTPServerTransport({
    sessionIdGenerator: randomUUID,
    eventStore: new Events(),
    retryInterval: 300,
    onsessioninitialized: (id) => sessions.set(id, transport),
    onsessionclosed: (id) => sessions.delete(id),
  });
  await everything("legacy", {
    toolsChanged: ({ server }) => server.sendToolListChanged(),
    promptsChanged: ({ server }) => server.sendPromptListChanged(),
    resourceUpdated: ({ server }, uri) => server.sendResourceUpdated({ uri }),
  }).connect(transport);
  return transport.handleRequest(request);
}

async function answer(request) {
  const refused =
    hostHeaderValidationResponse(request, localhostAllowedHostnames()) ??
    originValidationResponse(request, localhostAllowedOrigins());
  if (refused) return refused;
  return (await isLegacyRequest(request.clone())) ? legacy(request) : handler.fetch(request);
}

const server = createServer(async (incoming, outgoing) => {
  const gone = new AbortController();
  outgoing.on("close", () => gone.abort());
  const chunks = [];
  for await (const chunk of incoming) chunks.push(chunk);
  const headers = new Headers(Object.entries(incoming.headers).map(([name, value]) => [name, String(value)]));
  const body = chunks.length > 0 ? Buffer.concat(chunks) : undefined;
  const url = `http://${incoming.headers.host}${incoming.url}`;
  const response = await answer(new Request(url, { method: incoming.method, headers, body, signal: gone.signal }));
  outgoing.writeHead(response.status, Object.fromEntries(response.headers));
  outgoing.flushHeaders();
  const reader = response.body?.getReader();
  gone.signal.addEventListener("abort", () => reader?.cancel().catch(() => {}));
  for (let part; reader && !(part = await reader.read()).done; ) outgoing.write(part.value);
  outgoing.end();
});
server.listen(0, "127.0.0.1", () => console.log(`http://127.0.0.1:${server.address().port}/mcp`));
