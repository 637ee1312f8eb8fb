let rest = "";
for await (const text of Deno.stdin.readable.pipeThrough(new TextDecoderStream())) {
  const lines = text.split("\n");
  lines[0] = rest + lines[0];
  rest = lines.pop();
  for (const { id, method, params } of lines.map((line) => JSON.parse(line))) {
    if (id == null || method === undefined) continue;
    const result = { you_said: params, to: method };
    console.log(JSON.stringify({ jsonrpc: "2.0", id, result }));
  }
}
