#!/usr/bin/env node
// Starts the program for this machine, which is in an optional package of its own.
"use strict";

const { accessSync, constants } = require("fs");
const { spawn } = require("child_process");

const program = "@PROGRAM@";
const packages = @PACKAGES@;

function fail(text) {
  process.stderr.write(`${program}: ${text}\n`);
  process.exit(1);
}

function find() {
  if (process.platform !== "linux") {
    fail(`this program is for Linux, and this is ${process.platform}; run it in a container or on a server, and connect to it from here`);
  }
  const name = packages[process.arch];
  if (!name) {
    fail(`there is no program for this processor (${process.arch}), only for ${Object.keys(packages).join(" and ")}; build it with cargo`);
  }
  try {
    return require.resolve(`${name}/bin/${program}`);
  } catch {
    return fail(
      `the package ${name} is not installed; npm leaves it out with --omit=optional (or optional=false in .npmrc), and a ` +
        "node_modules that was installed for another processor lacks it; install again without that, on this machine",
    );
  }
}

const path = find();
const args = process.argv.slice(2);
// Node.js closes what a service manager or a program has passed on beyond stdin, stdout and stderr.
if (process.env.LISTEN_FDS || args.some((arg) => arg.startsWith("--config-fd"))) {
  fail(`open descriptors (LISTEN_FDS, --config-fd) do not reach the program through Node.js; start ${path} itself`);
}
try {
  accessSync(path, constants.X_OK);
} catch (error) {
  fail(`${path} cannot be executed: ${error.message}`);
}

if (typeof process.execve === "function") {
  // The program takes this process's place: its process ID, signals, stdin and stdout.
  process.execve(path, [path, ...args], process.env);
}

const child = spawn(path, args, { stdio: "inherit" });
// What is sent to this process is meant for the program; without a handler SIGUSR1 would open Node's debugger.
for (const signal of ["SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGUSR2"]) {
  process.on(signal, () => child.kill(signal));
}
child.on("error", (error) => fail(`${path} cannot be started: ${error.message}`));
child.on("exit", (code, signal) => {
  if (signal) {
    // This process ends as the program did, so that who waits for it sees the same.
    process.removeAllListeners(signal);
    process.kill(process.pid, signal);
  }
  process.exitCode = code === null ? 1 : code;
});
