package require sqlite3
sqlite3 json :memory:

proc part {line path} {
    json onecolumn {select cast(cast(@line as text) -> :path as blob)}
}

fconfigure stdin -translation binary
fconfigure stdout -translation binary -buffering line
while {[gets stdin line] >= 0} {
    set id [part $line {$.id}]
    set method [part $line {$.method}]
    set params [part $line {$.params}]
    if {$id in {"" null} || $method eq ""} continue
    if {$params eq ""} {set params null}
    puts "{\"jsonrpc\":\"2.0\",\"id\":$id,\"result\":{\"you_said\":$params,\"to\":$method}}"
}
