local json = require("dkjson")

local function say(answer)
  local text = json.encode(answer)
  print(utf8.len(text) and text or json.encode({ jsonrpc = "2.0", id = answer.id,
    error = { code = -32602, message = "a string has half of a surrogate pair" } }))
end

for line in io.lines() do
  local message, _, wrong = json.decode(line, 1, json.null)
  if wrong then
    say({ jsonrpc = "2.0", id = json.null, error = { code = -32700, message = wrong } })
  elseif message.method and message.id ~= nil and message.id ~= json.null then
    local result = { you_said = message.params, to = message.method }
    say({ jsonrpc = "2.0", id = message.id, result = result })
  end
end
