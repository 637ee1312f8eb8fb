// Checks every line that agents wrote against ACP's schema, as the official SDK ships it.
//
//   node schema.mjs DIRECTORY [KIND...]
//
// DIRECTORY has two files for each agent, NAME.in and NAME.out: all bytes of its stdin and of its stdout. A result is
// checked as the answer to its request. A KIND is the method of an answer, a kind of update, or `error`; there must be
// lines of each given kind, and at least one line.
//
// A line must satisfy the stable schema, and the unstable one without unknown members: ACP lets a client ignore those,
// but most would be misspelt. The few intended ones are in DEPARTURES.
import { readFileSync, readdirSync } from "node:fs";
import { basename, join } from "node:path";
import Ajv2020 from "ajv/dist/2020.js";

const UPDATE = "session/update";

// Members outside both schemas. Clients of earlier versions use `models`, Open Design needs the session id from
// session/load, and the bus adds it to a message that had it.
const DEPARTURES = {
  "session/new": ["/result models"],
  "session/load": ["/result models", "/result sessionId"],
  "session/resume": ["/result models", "/result sessionId"],
  "*": [" sessionId"],
};

// Requests outside ACP that we answer with an empty object: the former way to set the model, and cancelling with an id.
const EMPTY_ANSWERS = ["session/set_model", "session/cancel", "cancel"];

// A line's list of errors is cut at this length.
const MOST_ERRORS = 8;

/** The schema of this name with what its keywords refer to; `seal` closes every object that it describes. */
function schema(name, seal) {
  const path = new URL(`./node_modules/@agentclientprotocol/sdk/schema/v1/${name}.json`, import.meta.url);
  const whole = JSON.parse(readFileSync(path, "utf8"));
  return seal ? sealed(whole) : whole;
}

/** A copy of a schema in which the values of members and items may only have the described members. */
function sealed(value) {
  if (typeof value !== "object" || value === null) return value;
  if (Array.isArray(value)) return value.map(sealed);
  const copy = {};
  for (const [name, inner] of Object.entries(value)) {
    const isNamed = name === "properties" || name === "$defs";
    copy[name] = isNamed ? mapped(inner, name === "properties" ? closed : sealed) : sealed(inner);
  }
  if (copy.items) copy.items = closed(value.items);
  return copy;
}

const mapped = (values, change) => Object.fromEntries(Object.entries(values).map(([name, value]) => [name, change(value)]));

function closed(value) {
  const describes = ["$ref", "allOf", "anyOf", "oneOf", "properties"].some((keyword) => keyword in value);
  return describes ? { ...sealed(value), unevaluatedProperties: false } : sealed(value);
}

/** A validator of an agent's messages with one schema. */
class Rules {
  constructor(name, isSealed) {
    const whole = schema(name, isSealed);
    // Ignores keywords for code generators.
    const ajv = new Ajv2020({ strict: false, allErrors: true, discriminator: true });
    const within = (least, most) => ({ type: "number", validate: (n) => Number.isInteger(n) && n >= least && n <= most });
    ajv.addFormat("uint16", within(0, 2 ** 16 - 1));
    ajv.addFormat("uint32", within(0, 2 ** 32 - 1));
    ajv.addFormat("uint64", within(0, 2 ** 64));
    ajv.addFormat("int32", within(-(2 ** 31), 2 ** 31 - 1));
    ajv.addFormat("int64", within(-(2 ** 63), 2 ** 63));
    ajv.addFormat("double", { type: "number", validate: Number.isFinite });
    ajv.addFormat("uri", (text) => URL.canParse(text));
    ajv.addSchema(whole, "acp");
    const one = (reference) => ({ $ref: `acp#${reference}` });
    const agent = whole.anyOf.findIndex((side) => side.title === "Agent");
    const message = (properties) => {
      const members = { jsonrpc: { const: "2.0" }, ...properties };
      const shape = { type: "object", properties: members, required: Object.keys(members) };
      return ajv.compile(isSealed ? { ...shape, unevaluatedProperties: false } : { allOf: [one(`/anyOf/${agent}`), shape] });
    };
    const part = (definition) => (isSealed ? closed(one(`/$defs/${definition}`)) : one(`/$defs/${definition}`));
    const id = part("RequestId");
    this.results = new Map();
    for (const [definition, { "x-side": side, "x-method": method }] of Object.entries(whole.$defs)) {
      if (side === "agent" && definition.endsWith("Response")) {
        this.results.set(method, message({ id, result: part(definition) }));
      }
    }
    for (const method of EMPTY_ANSWERS) {
      if (this.results.has(method)) throw new Error(`${method} is a method of ACP now`);
      this.results.set(method, message({ id, result: { type: "object", maxProperties: 0 } }));
    }
    this.error = message({ id, error: part("Error") });
    this.update = message({ method: { const: UPDATE }, params: part("SessionNotification") });
  }

  /** The errors in a message; `method` is that of the request, for a result. */
  faults(message, method) {
    if ("method" in message) return this.#by(this.update, message, UPDATE);
    if ("error" in message) return this.#by(this.error, message, "error");
    const check = this.results.get(method);
    return check ? this.#by(check, message, method) : [`${method} is not a method of ACP`];
  }

  #by(check, message, kind) {
    if (check(message)) return [];
    const meant = [...(DEPARTURES[kind] ?? []), ...DEPARTURES["*"]];
    return check.errors
      .filter(({ instancePath, params }) => !meant.includes(`${instancePath} ${params.unevaluatedProperty}`))
      .map(({ instancePath, message, params }) => `${instancePath || "the message"} ${message} ${JSON.stringify(params)}`);
  }
}

const stable = new Rules("schema", false);
const unstable = new Rules("schema.unstable", true);

function lines(bytes) {
  const lines = [];
  for (let begin = 0, end; begin < bytes.length; begin = end + 1) {
    end = bytes.indexOf(10, begin);
    if (end < 0) return { lines, rest: bytes.length - begin };
    lines.push(bytes.subarray(begin, end));
  }
  return { lines, rest: 0 };
}

const key = (id) => `${typeof id} ${id}`;

/** The methods of requests by id, in order. Skips lines that are not JSON. */
function asked(bytes) {
  const methods = new Map();
  for (const line of lines(bytes).lines) {
    let message;
    try {
      message = JSON.parse(line.toString());
    } catch {
      continue;
    }
    if (message?.method === undefined || !("id" in message)) continue;
    const named = methods.get(key(message.id)) ?? methods.set(key(message.id), []).get(key(message.id));
    named.push(message.method);
  }
  return methods;
}

/** Checks one agent's output: the errors by line, and the kinds of its lines. */
function check(told, said) {
  const methods = asked(told);
  const found = { faults: [], kinds: [], isCut: false };
  const { lines: written, rest } = lines(said);
  found.isCut = rest > 0;
  written.forEach((line, index) => {
    const wrong = (why) => found.faults.push({ number: index + 1, why, line: line.subarray(0, 400).toString() });
    let message;
    try {
      message = JSON.parse(new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(line));
    } catch (error) {
      return wrong([String(error)]);
    }
    if (typeof message !== "object" || message === null || Array.isArray(message)) return wrong(["it is not an object"]);
    let method;
    if (!("method" in message)) {
      method = methods.get(key(message.id))?.shift();
      if (method === undefined && !("error" in message)) return wrong(["it answers nothing that was asked"]);
      // An id that is invalid in ACP is the sender's fault: it is returned verbatim.
      if (method !== undefined) message.id = 0;
    }
    const faults = [...new Set([...stable.faults(message, method), ...unstable.faults(message, method)])];
    if (faults.length > 0) return wrong(faults.slice(0, MOST_ERRORS));
    const update = message.params?.update?.sessionUpdate;
    found.kinds.push(update ?? ("error" in message ? "error" : method));
  });
  return found;
}

/** Lines that must be found valid or invalid, to prove that the check works. */
function checkOurselves() {
  const asked = (method, id = 1) => Buffer.from(`{"jsonrpc":"2.0","id":${id},"method":"${method}","params":{}}\n`);
  const update = (update, more = "") => `{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":${update}}${more}}`;
  const text = `"content":{"type":"text","text":"x"}`;
  const answer = (result) => `{"jsonrpc":"2.0","id":1,"result":${result}}`;
  const right = [
    ["session/prompt", answer(`{"stopReason":"end_turn","usage":{"totalTokens":2,"inputTokens":1,"outputTokens":1}}`)],
    ["session/load", answer(`{"sessionId":"s","models":{}}`)],
    ["session/cancel", answer("{}")],
    ["session/close", answer("{}").replace(":1,", ":7.5,"), 7.5],
    ["session/new", `{"jsonrpc":"2.0","id":1,"error":{"code":-32000,"message":"no","data":{"any":1}}}`],
    ["none", `{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"no"}}`],
    ["none", update(`{"sessionUpdate":"agent_message_chunk","messageId":"m",${text}}`)],
    ["none", update(`{"sessionUpdate":"agent_message_chunk",${text}}`, `,"sessionId":"s"`)],
  ];
  const wrong = [
    ["initialize", answer(`{"protocolVersion":"2025-03-26"}`), "/result/protocolVersion"],
    ["initialize", answer(`{"protocolVersion":1,"agentCapabilities":{"loadSesion":true}}`), "loadSesion"],
    ["session/new", answer("{}"), "sessionId"],
    ["session/new", answer(`{"sessionId":"s","configOptions":[{"id":"a"}]}`), "/result/configOptions/0"],
    ["session/prompt", answer(`{"stopReason":"stop"}`), "/result/stopReason"],
    ["session/prompt", answer(`{"stopReason":"end_turn","usage":{"totalTokens":-1,"inputTokens":0,"outputTokens":0}}`), "/result/usage"],
    ["session/list", answer(`{"sessions":[{"sessionId":"s"}]}`), "cwd"],
    ["session/set_model", answer(`{"model":"m"}`), "/result"],
    ["session/fly", answer("{}"), "not a method"],
    ["none", answer("{}").replace(":1,", ":2,"), "answers nothing"],
    ["session/prompt", `{"id":1,"result":{"stopReason":"end_turn"}}`, "jsonrpc"],
    ["session/prompt", `{"jsonrpc":"2.0","id":1,"result":{"stopReason":"end_turn"},"error":null}`, "error"],
    ["session/prompt", `{"jsonrpc":"2.0","id":1,"error":{"code":-32000}}`, "message"],
    ["session/prompt", `{"jsonrpc":"2.0","id":1.5,"error":{"code":1,"message":""}}`, "/id"],
    ["none", update(`{"sessionUpdate":"agent_mesage_chunk",${text}}`), "/params/update"],
    ["none", update(`{"sessionUpdate":"agent_message_chunk","content":{"type":"text"}}`), "text"],
    ["none", update(`{"sessionUpdate":"agent_message_chunk","mesageId":"m",${text}}`), "mesageId"],
    ["none", update(`{"sessionUpdate":"usage_update","used":1.5,"size":2}`), "used"],
    ["none", `{"jsonrpc":"2.0","method":"session/say","params":{}}`, "/method"],
    ["none", "", "SyntaxError"],
    ["none", `{"jsonrpc":"2.0"`, "SyntaxError"],
    ["none", "[]", "not an object"],
    ["none", Buffer.from([0x22, 0xff, 0x22]), "TypeError"],
  ];
  for (const [method, line, id] of right) {
    const { faults } = check(asked(method, id), Buffer.from(`${line}\n`));
    if (faults.length > 0) throw new Error(`this line is right, and was not found so: ${line}\n${faults[0].why.join("\n")}`);
  }
  for (const [method, line, why] of wrong) {
    const said = Buffer.concat([Buffer.from(line), Buffer.from("\n")]);
    const { faults } = check(asked(method), said);
    const told = faults[0]?.why.join("\n");
    if (!told?.includes(why)) throw new Error(`this line is wrong, and was not found so: ${line}\n${told}`);
  }
  console.log(`the check itself: ${right.length} right and ${wrong.length} wrong lines are distinguished`);
}

function main([directory, ...expected]) {
  checkOurselves();
  const agents = readdirSync(directory).filter((name) => name.endsWith(".out"));
  const kinds = new Map();
  let cut = 0, wrong = 0;
  for (const name of agents) {
    const path = join(directory, name);
    const { faults, kinds: found, isCut } = check(readFileSync(path.replace(/out$/, "in")), readFileSync(path));
    found.forEach((kind) => kinds.set(kind, (kinds.get(kind) ?? 0) + 1));
    cut += isCut;
    for (const { number, why, line } of faults) {
      wrong += 1;
      if (wrong <= 20) console.error(`${basename(name, ".out")}, line ${number}:\n  ${why.join("\n  ")}\n  ${line}`);
    }
  }
  const counts = [...kinds].sort(([one], [other]) => (one < other ? -1 : 1));
  for (const [kind, count] of counts) console.log(`${String(count).padStart(9)}  ${kind}`);
  const total = counts.reduce((sum, [, count]) => sum + count, 0);
  console.log(`${total} lines of ${agents.length} agents are as ACP's schema wants them, ${wrong} are not`);
  // Killed agents may stop in the middle of a line.
  if (cut > 0) console.log(`${cut} agents were ended within a line, which was not checked`);
  const missing = expected.filter((kind) => !kinds.has(kind));
  if (missing.length > 0) console.error(`there was no line of these kinds: ${missing.join(", ")}`);
  if (total === 0) console.error(`there was nothing to check in ${directory}`);
  process.exitCode = wrong > 0 || total === 0 || missing.length > 0 ? 1 : 0;
}

main(process.argv.slice(2));
