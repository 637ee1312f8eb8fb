require "json"

$stdout.sync = true
$stdin.set_encoding("UTF-8").each_line do |line|
  message = JSON.parse(line, max_nesting: false)
  next if message["id"].nil? || message["method"].nil?
  result = { you_said: message["params"], to: message["method"] }
  answer = { jsonrpc: "2.0", id: message["id"], result: result }
  $stdout.write(JSON.generate(answer, max_nesting: 0) + "\n")
rescue JSON::JSONError => error
  puts JSON.generate(jsonrpc: "2.0", id: nil, error: { code: -32700, message: error.message.scrub })
end
