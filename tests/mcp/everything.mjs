// A server with everything that @modelcontextprotocol/conformance requires by name, and some tools for the other tests.
// One implementation serves both eras: `node everything.mjs` over stdio, reference.mjs over the SDK's own HTTP.
import { randomBytes } from "node:crypto";
import { appendFileSync } from "node:fs";
import {
  McpServer,
  ResourceTemplate,
  acceptedContent,
  completable,
  createRequestStateCodec,
  inputRequired,
  inputResponse,
} from "@modelcontextprotocol/server";
import { serveStdio } from "@modelcontextprotocol/server/stdio";
import { pathToFileURL } from "node:url";
import * as z from "zod";

const PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg==";
const WAV = "UklGRiQAAABXQVZFZm10IBAAAAABAAEARKwAAIhYAQACABAAZGF0YQAAAAA=";
const CLIENT_CAPABILITIES = "io.modelcontextprotocol/clientCapabilities";

// The state belongs to this process: others reject it.
const states = createRequestStateCodec({ key: randomBytes(32) });

const text = (said) => ({ content: [{ type: "text", text: said }] });
const wait = (time, signal) =>
  new Promise((resolve, reject) => {
    if (signal?.aborted) reject(new Error("cancelled"));
    const timer = setTimeout(resolve, time);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(new Error("cancelled"));
    });
  });
const form = (message, properties) =>
  inputRequired.elicit({
    message,
    requestedSchema: { type: "object", properties, required: Object.keys(properties) },
  });
const sampling = (prompt, maxTokens = 100) =>
  inputRequired.createMessage({ messages: [{ role: "user", content: { type: "text", text: prompt } }], maxTokens });
const embedded = (uri, mimeType, said) => ({ type: "resource", resource: { uri, mimeType, text: said } });

async function progress(mcpReq, done, total) {
  const progressToken = mcpReq._meta?.progressToken;
  if (progressToken === undefined) return;
  await mcpReq.notify({ method: "notifications/progress", params: { progressToken, progress: done, total } });
}

function content(server) {
  const tool = (name, description, run) => server.registerTool(name, { description }, run);
  tool("test_simple_text", "Says a sentence", () => text("This is a simple text response for testing."));
  tool("test_image_content", "Shows one pixel", () => ({
    content: [{ type: "image", data: PNG, mimeType: "image/png" }],
  }));
  tool("test_audio_content", "Plays nothing", () => ({ content: [{ type: "audio", data: WAV, mimeType: "audio/wav" }] }));
  tool("test_embedded_resource", "Brings a resource", () => ({
    content: [embedded("test://embedded-resource", "text/plain", "This is an embedded resource content.")],
  }));
  tool("test_multiple_content_types", "Brings a sentence, a pixel and a resource", () => ({
    content: [
      { type: "text", text: "Multiple content types test:" },
      { type: "image", data: PNG, mimeType: "image/png" },
      embedded("test://mixed-content-resource", "application/json", JSON.stringify({ test: "data", value: 123 })),
    ],
  }));
  tool("test_error_handling", "Always fails", () => {
    throw new Error("This tool intentionally returns an error for testing");
  });
  tool("test_tool_with_progress", "Tells how far it is, three times", async ({ mcpReq }) => {
    for (const done of [0, 50, 100]) {
      await progress(mcpReq, done, 100);
      if (done < 100) await wait(50, mcpReq.signal);
    }
    return text("done");
  });
}

function logging(server, era) {
  // The older era sets a level once, the newer one in each request, and the SDK supports both.
  const run = async ({ mcpReq }) => {
    for (const said of ["Tool execution started", "Tool processing data", "Tool execution completed"]) {
      await mcpReq.log("info", said);
      await wait(50, mcpReq.signal);
    }
    return text("logged");
  };
  for (const name of ["test_tool_with_logging", "test_logging_tool"]) {
    server.registerTool(name, { description: `Logs three times, as ${era} clients wish` }, run);
  }
}

// Elicitation, sampling and roots. For clients of the older era the SDK turns them into requests.
function inputs(server) {
  const tool = (name, description, run, inputSchema) => server.registerTool(name, { description, inputSchema }, run);
  const asks = (key, request, tell) => async (first, second) => {
    const { mcpReq } = second ?? first;
    const answer = inputResponse(mcpReq.inputResponses, key);
    if (answer.kind === "missing") return inputRequired({ inputRequests: { [key]: request(first) } });
    return text(tell(answer));
  };
  const whole = (answer) => `action=${answer.action}, content=${JSON.stringify(answer.content ?? {})}`;
  tool(
    "test_sampling",
    "Asks the client's model",
    asks(
      "sampled",
      ({ prompt }) => sampling(prompt),
      ({ result }) => `LLM response: ${result.content.text}`,
    ),
    z.object({ prompt: z.string() }),
  );
  const user = {
    username: { type: "string", description: "User's response" },
    email: { type: "string", description: "User's email address" },
  };
  tool(
    "test_elicitation",
    "Asks the user",
    asks(
      "user",
      ({ message }) => form(message, user),
      (answer) => `User response: ${whole(answer)}`,
    ),
    z.object({ message: z.string() }),
  );
  const defaults = {
    name: { type: "string", default: "John Doe" },
    age: { type: "integer", default: 30 },
    score: { type: "number", default: 95.5 },
    status: { type: "string", enum: ["active", "inactive", "pending"], default: "active" },
    verified: { type: "boolean", default: true },
  };
  tool(
    "test_elicitation_sep1034_defaults",
    "Asks the user with defaults",
    asks(
      "defaults",
      () => form("Please look at the defaults", defaults),
      (answer) => `Elicitation completed: ${whole(answer)}`,
    ),
  );
  const titled = (values, titles) => values.map((value, at) => ({ const: value, title: titles[at] }));
  const choices = {
    untitledSingle: { type: "string", enum: ["option1", "option2", "option3"] },
    titledSingle: {
      type: "string",
      oneOf: titled(["value1", "value2", "value3"], ["First Option", "Second Option", "Third Option"]),
    },
    legacyEnum: {
      type: "string",
      enum: ["opt1", "opt2", "opt3"],
      enumNames: ["Option One", "Option Two", "Option Three"],
    },
    untitledMulti: { type: "array", items: { type: "string", enum: ["option1", "option2", "option3"] } },
    titledMulti: {
      type: "array",
      items: { anyOf: titled(["value1", "value2", "value3"], ["First Choice", "Second Choice", "Third Choice"]) },
    },
  };
  tool(
    "test_elicitation_sep1330_enums",
    "Asks the user to choose",
    asks(
      "choices",
      () =>
        inputRequired.elicit({
          message: "Please choose",
          requestedSchema: { type: "object", properties: choices, required: [] },
        }),
      (answer) => `Elicitation completed: ${whole(answer)}`,
    ),
  );
  tool(
    "test_input_required_result_sampling",
    "Asks the client's model for a capital",
    asks(
      "capital_question",
      () => sampling("What is the capital of France?"),
      ({ result }) => result.content.text,
    ),
  );
  tool(
    "test_input_required_result_list_roots",
    "Asks for the client's roots",
    asks(
      "client_roots",
      () => inputRequired.listRoots(),
      ({ roots }) => `roots: ${roots.map(({ uri }) => uri).join(" ")}`,
    ),
  );
}

const named = () => form("What is your name?", { name: { type: "string" } });
const confirmed = () => form("Please confirm", { ok: { type: "boolean" } });

// Multi-round input requests that carry a state, as in the newer era.
function rounds(server) {
  const tool = (name, description, run) => server.registerTool(name, { description }, run);
  tool("test_input_required_result_elicitation", "Asks for a name", ({ mcpReq }) => {
    const given = acceptedContent(mcpReq.inputResponses, "user_name", z.object({ name: z.string() }));
    return given ? text(`Hello, ${given.name}!`) : inputRequired({ inputRequests: { user_name: named() } });
  });
  for (const name of ["test_input_required_result_request_state", "test_input_required_result_tampered_state"]) {
    tool(name, "Keeps a state while it asks", async ({ mcpReq }) => {
      if (mcpReq.requestState()?.tool === name) return text(`state-ok at ${process.pid}`);
      return inputRequired({ inputRequests: { confirm: confirmed() }, requestState: await states.mint({ tool: name }) });
    });
  }
  tool("test_input_required_result_multiple_inputs", "Asks for three things", async ({ mcpReq }) => {
    const keys = ["user_name", "greeting", "client_roots"];
    if (keys.every((key) => inputResponse(mcpReq.inputResponses, key).kind !== "missing")) return text("all there");
    const inputRequests = {
      user_name: named(),
      greeting: sampling("Generate a greeting", 50),
      client_roots: inputRequired.listRoots(),
    };
    return inputRequired({ inputRequests, requestState: await states.mint({ asked: keys }) });
  });
  tool("test_input_required_result_multi_round", "Asks twice", async ({ mcpReq }) => {
    const state = mcpReq.requestState();
    const step = (key, message, field, next) =>
      states
        .mint(next)
        .then((requestState) =>
          inputRequired({ inputRequests: { [key]: form(message, { [field]: { type: "string" } }) }, requestState }),
        );
    const name = state?.name ?? acceptedContent(mcpReq.inputResponses, "step1")?.name;
    if (!state || !name) return step("step1", "Step 1: What is your name?", "name", { round: 1 });
    const color = acceptedContent(mcpReq.inputResponses, "step2")?.color;
    if (!color) return step("step2", "Step 2: What is your favorite color?", "color", { round: 2, name });
    return text(`${name} likes ${color}`);
  });
  tool("test_input_required_result_capabilities", "Asks for what the client can do", ({ mcpReq }) => {
    if (mcpReq.inputResponses) return text("answered");
    const can = mcpReq.envelope?.[CLIENT_CAPABILITIES] ?? {};
    const inputRequests = {};
    if (can.sampling) inputRequests.sampled = sampling("Say something");
    if (can.elicitation) inputRequests.user_name = named();
    if (can.roots) inputRequests.client_roots = inputRequired.listRoots();
    return inputRequired({ inputRequests });
  });
  // The SDK refuses to ask a client for an unsupported capability.
  tool("test_missing_capability", "Needs a client that samples", ({ mcpReq }) =>
    mcpReq.inputResponses ? text("it samples") : inputRequired({ inputRequests: { sampled: sampling("Say something") } }),
  );
  tool("test_streaming_elicitation", "Tells how far it is, and asks", async ({ mcpReq }) => {
    if (mcpReq.inputResponses) return text("answered");
    await progress(mcpReq, 1, 2);
    return inputRequired({ inputRequests: { user_name: named() } });
  });
}

function resources(server) {
  const at = (name, uri, mimeType, body) =>
    server.registerResource(name, uri, { description: `The resource ${name}`, mimeType }, () => ({
      contents: [{ uri, mimeType, ...body }],
    }));
  at("static-text", "test://static-text", "text/plain", { text: "This is the content of the static text resource." });
  at("static-binary", "test://static-binary", "image/png", { blob: PNG });
  at("watched-resource", "test://watched-resource", "text/plain", { text: "watched" });
  server.registerResource(
    "template",
    new ResourceTemplate("test://template/{id}/data", { list: undefined }),
    { description: "Data by their id", mimeType: "application/json" },
    ({ href }, { id }) => ({
      contents: [
        {
          uri: href,
          mimeType: "application/json",
          text: JSON.stringify({ id, templateTest: true, data: `Data for ID: ${id}` }),
        },
      ],
    }),
  );
}

function prompts(server) {
  const says = (...contents) => ({ messages: contents.map((content) => ({ role: "user", content })) });
  const sentence = (said) => ({ type: "text", text: said });
  const prompt = (name, description, run, argsSchema) => server.registerPrompt(name, { description, argsSchema }, run);
  prompt("test_simple_prompt", "One sentence", () => says(sentence("This is a simple prompt for testing.")));
  const word = (description) => completable(z.string().describe(description), (begun) => [`${begun}ing`, `${begun}ed`]);
  prompt(
    "test_prompt_with_arguments",
    "A sentence with two words in it",
    ({ arg1, arg2 }) => says(sentence(`Prompt with arguments: arg1='${arg1}', arg2='${arg2}'`)),
    z.object({ arg1: word("First test argument"), arg2: word("Second test argument") }),
  );
  prompt(
    "test_prompt_with_embedded_resource",
    "A resource and what to do with it",
    ({ resourceUri }) =>
      says(
        embedded(resourceUri, "text/plain", "Embedded resource content for testing."),
        sentence("Please process the embedded resource above."),
      ),
    z.object({ resourceUri: z.string() }),
  );
  prompt("test_prompt_with_image", "A pixel and what to do with it", () =>
    says({ type: "image", data: PNG, mimeType: "image/png" }, sentence("Please analyze the image above.")),
  );
  prompt("test_input_required_result_prompt", "A sentence that the user is asked for", ({ mcpReq }) => {
    const given = acceptedContent(mcpReq.inputResponses, "user_context");
    if (given) return says(sentence(`In the context of ${given.context}`));
    const properties = { context: { type: "string" } };
    return inputRequired({ inputRequests: { user_context: form("What context should the prompt use?", properties) } });
  });
}

// Changes are reported by the transport: a process on stdio reports its own.
function changes(server, notify) {
  const tool = (name, description, run, inputSchema) => server.registerTool(name, { description, inputSchema }, run);
  tool("test_trigger_tool_change", "Says that the tools have changed", () => {
    notify.toolsChanged(server);
    return text("told");
  });
  tool("test_trigger_prompt_change", "Says that the prompts have changed", () => {
    notify.promptsChanged(server);
    return text("told");
  });
  tool(
    "touch",
    "Says that a resource has changed",
    ({ uri }) => {
      notify.resourceUpdated(server, uri);
      return text("told");
    },
    z.object({ uri: z.string() }),
  );
}

// For the tests besides the suite.
function own(server) {
  const tool = (name, description, run, inputSchema) => server.registerTool(name, { description, inputSchema }, run);
  tool("echo", "Says what it is told", (said) => text(said.text), z.object({ text: z.string() }));
  tool("pid", "Tells which process it is", () => text(String(process.pid)));
  // Calls may reach different processes, so the outcome of one is written where its caller looks.
  tool(
    "slow",
    "Takes its time, and reports in steps how far it is",
    async ({ name, time, steps, fate }, { mcpReq }) => {
      const ends = (how) => {
        try {
          if (fate) appendFileSync(fate, `${how}\n`);
        } catch {
          // The reader has gone.
        }
      };
      mcpReq.signal.addEventListener("abort", () => ends("cancelled"));
      for (let done = 1; done <= steps; done++) {
        await wait(time / steps, mcpReq.signal);
        await progress(mcpReq, done, steps);
      }
      ends("done");
      return text(`${name} is done`);
    },
    z.object({ name: z.string(), time: z.number(), steps: z.number().default(1), fate: z.string().optional() }),
  );
  tool("crash", "Ends the process", () => process.exit(3));
}

export function everything(era, notify) {
  const server = new McpServer(
    { name: "everything-of-stdio-bus", version: "1.0.0" },
    {
      capabilities: {
        logging: {},
        completions: {},
        tools: { listChanged: true },
        prompts: { listChanged: true },
        resources: { listChanged: true, subscribe: true },
      },
      requestState: { verify: states.verify },
    },
  );
  content(server);
  logging(server, era);
  inputs(server);
  rounds(server);
  resources(server);
  prompts(server);
  changes(server, notify);
  own(server);
  subscriptions(server, era);
  return server;
}

function subscriptions({ server }, era) {
  if (era !== "legacy") return;
  const watched = new Set();
  server.setRequestHandler("resources/subscribe", ({ params }) => {
    watched.add(params.uri);
    return {};
  });
  server.setRequestHandler("resources/unsubscribe", ({ params }) => {
    watched.delete(params.uri);
    return {};
  });
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) {
  serveStdio(({ era }) =>
    everything(era, {
      toolsChanged: ({ server }) => server.sendToolListChanged(),
      promptsChanged: ({ server }) => server.sendPromptListChanged(),
      resourceUpdated: ({ server }, uri) => server.sendResourceUpdated({ uri }),
    }),
  );
}
