import com.google.gson.*;
import java.io.*;
import java.nio.charset.StandardCharsets;

class Worker {
    public static void main(String[] args) throws IOException {
        var in = new BufferedInputStream(System.in, 65536);
        var line = new ByteArrayOutputStream();
        for (int next; (next = in.read()) != -1; line.write(next)) {
            if (next != '\n') continue;
            var message = JsonParser.parseString(line.toString(StandardCharsets.UTF_8)).getAsJsonObject();
            line.reset();
            if (!message.has("method") || !message.has("id") || message.get("id").isJsonNull()) continue;
            var result = new JsonObject();
            result.add("you_said", message.get("params"));
            result.add("to", message.get("method"));
            var answer = new JsonObject();
            answer.addProperty("jsonrpc", "2.0");
            answer.add("id", message.get("id"));
            answer.add("result", result);
            System.out.write((answer + "\n").getBytes(StandardCharsets.UTF_8));
            System.out.flush();
        }
    }
}
