#!/bin/sh
while IFS= read -r line; do
    printf '%s\n' "$line" | jq -c '
        select(.id != null and .method != null)
        | { jsonrpc: "2.0", id, result: { you_said: .params, to: .method } }' ||
        echo '{ "jsonrpc": "2.0", "id": null, "error": { "code": -32700, "message": "jq cannot read this" } }'
done
