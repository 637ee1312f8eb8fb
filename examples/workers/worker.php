<?php
function say(array $answer): void {
    $flags = JSON_THROW_ON_ERROR | JSON_PRESERVE_ZERO_FRACTION;
    fwrite(STDOUT, json_encode(["jsonrpc" => "2.0"] + $answer, $flags, 1024) . "\n");
}

while (($line = fgets(STDIN)) !== false) {
    try {
        $message = json_decode($line, false, 1024, JSON_THROW_ON_ERROR);
        if (!isset($message->id, $message->method)) {
            continue;
        }
        $result = ["you_said" => $message->params ?? null, "to" => $message->method];
        say(["id" => $message->id, "result" => $result]);
    } catch (JsonException $error) {
        say(["id" => null, "error" => ["code" => -32700, "message" => $error->getMessage()]]);
    }
}
