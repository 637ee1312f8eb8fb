let say answer =
  print_endline (Yojson.Safe.to_string (`Assoc (("jsonrpc", `String "2.0") :: answer)))

let answer line =
  match Yojson.Safe.from_string line with
  | exception Yojson.Json_error why ->
      say [ ("id", `Null); ("error", `Assoc [ ("code", `Int (-32700)); ("message", `String why) ]) ]
  | message -> (
      let part name = Yojson.Safe.Util.member name message in
      match (part "id", part "method") with
      | `Null, _ | _, `Null -> ()
      | id, name ->
          say [ ("id", id); ("result", `Assoc [ ("you_said", part "params"); ("to", name) ]) ])

let () =
  try
    while true do
      answer (input_line stdin)
    done
  with End_of_file -> ()
