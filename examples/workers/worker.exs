:io.setopts(:standard_io, encoding: :latin1, binary: true)
Enum.each(:logger.get_handler_ids(), &:logger.remove_handler/1)
:logger.add_handler(:stderr, :logger_std_h, %{config: %{type: :standard_error}})

say = fn answer -> IO.binwrite([:jiffy.encode(Map.put(answer, :jsonrpc, "2.0")), "\n"]) end

answer = fn line ->
  try do
    case :jiffy.decode(line, [:return_maps]) do
      %{"id" => id, "method" => method} = message when id != :null ->
        result = %{you_said: Map.get(message, "params", :null), to: method}
        say.(%{id: id, result: result})

      _ ->
        :ok
    end
  rescue
    error -> say.(%{id: :null, error: %{code: -32700, message: inspect(error)}})
  end
end

Enum.each(IO.binstream(:stdio, :line), answer)
