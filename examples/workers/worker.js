let rest = "";
process.stdin.setEncoding("utf8").on("data", (text) => {
  const lines = text.split("\n");
  lines[0] = rest + lines[0];
  rest = lines.pop();
  for (const { id, method, params } of lines.map((line) => JSON.parse(line))) {
    if (id == null || method === undefined) continue;
    const answer = { jsonrpc: "2.0", id, result: { you_said: params, to: method } };
    process.stdout.write(JSON.stringify(answer) + "\n");
  }
});
