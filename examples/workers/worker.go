package main

import (
	"bufio"
	"encoding/json"
	"os"
)

func main() {
	in, out := bufio.NewReader(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return
		}
		var message struct{ ID, Params json.RawMessage; Method *string }
		err = json.Unmarshal(line, &message)
		if err != nil || message.Method == nil || message.ID == nil || string(message.ID) == "null" {
			continue
		}
		result := map[string]any{"you_said": message.Params, "to": message.Method}
		out.Encode(map[string]any{"jsonrpc": "2.0", "id": message.ID, "result": result})
	}
}
