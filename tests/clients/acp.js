// Selects an ACP SDK by its major version: `2` is the current one, `1` the last of the first line.
export async function sdk(major) {
  return major === "1" ? await import("acp-sdk-1") : await import("@agentclientprotocol/sdk");
}
