// Four agents behind the bus, and the official TypeScript SDK as several clients at once.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import * as acp from "@agentclientprotocol/sdk";
import { startMock } from "./mock.mjs";
import { busProgram, withBus, withBusClient } from "./support.mjs";

let mock, env;
const options = { skip: busProgram ? false : "STDIO_BUS_BIN does not name the bus" };
before(async () => {
  mock = await startMock();
  env = { OPENAI_BASE_URL: `${mock.url}/v1`, OPENAI_API_KEY: "test" };
});
after(() => mock.stop());

for (const assignment of ["client", "dedicated"]) {
  const pool = assignment === "dedicated" ? { assignment, max_instances: 16 } : { assignment };
  test(`twelve clients with two sessions each talk to four agents (${assignment})`, options, () =>
    withBus(env, pool, async (port) => {
      const one = (index) =>
        withBusClient(port, async ({ newSession }) => {
          const sessions = [await newSession(), await newSession()];
          for (let turn = 0; turn < 3; turn++) {
            const answers = await Promise.all(sessions.map((session, which) => session.prompt(`client ${index}${which}`)));
            answers.forEach((answer, which) => {
              assert.equal(answer.text, `I hear client ${index}${which}.`);
              assert.equal(answer.stopReason, "end_turn");
            });
          }
        });
      await Promise.all(Array.from({ length: 12 }, (_, index) => one(index)));
    }));
}

test("cancelling reaches the agent that runs the prompt", options, () =>
  withBus(env, {}, (port) =>
    withBusClient(port, async ({ context, newSession, nextUpdate }) => {
      const session = await newSession();
      const running = session.prompt("slowly");
      await nextUpdate();
      await context.notify(acp.methods.agent.session.cancel, { sessionId: session.id });
      assert.equal((await running).stopReason, "cancelled");
      assert.equal((await session.prompt("hello")).text, "Hello there, friend! ✓");
    })));
