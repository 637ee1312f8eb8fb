for await (const line of console) {
  if (line === "") continue;
  const { id, method, params } = JSON.parse(line);
  if (id == null || method === undefined) continue;
  const result = { you_said: params, to: method };
  console.log(JSON.stringify({ jsonrpc: "2.0", id, result }));
}
