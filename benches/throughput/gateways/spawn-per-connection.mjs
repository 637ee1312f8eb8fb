// A naive WebSocket server: a process per connection, a line of its stdout per message.
//
//   node spawn-per-connection.mjs PORT COMMAND [ARGUMENT...]
import { spawn } from "node:child_process";
import { createInterface } from "node:readline";
import { WebSocketServer } from "ws";

const [port, command, ...parameters] = process.argv.slice(2);

new WebSocketServer({ host: "127.0.0.1", port: Number(port) }).on("connection", (socket) => {
  const agent = spawn(command, parameters, { stdio: ["pipe", "pipe", "inherit"] });
  createInterface({ input: agent.stdout }).on("line", (line) => socket.send(line));
  agent.on("error", () => socket.close(1011));
  agent.on("exit", () => socket.close());
  agent.stdin.on("error", () => {});
  socket.on("message", (message) => agent.stdin.write(`${message}\n`));
  socket.on("close", () => agent.stdin.end());
});
