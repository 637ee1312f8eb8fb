# Homebrew on Linux: brew install ./stdio-bus.rb. scripts/release puts in the addresses and checksums of its archives.
class StdioBus < Formula
  desc "Message bus for AI agents that speak JSON-RPC over stdin and stdout"
  homepage "@HOMEPAGE@"
  version "@VERSION@"
  license any_of: ["MIT", "Apache-2.0"]
  depends_on :linux
@SOURCES@
  def install
    bin.install "stdio_bus", "openai-agent"
    man1.install Dir["man/*.1"]
    bash_completion.install "completions/stdio_bus.bash" => "stdio_bus"
    bash_completion.install "completions/openai-agent.bash" => "openai-agent"
    fish_completion.install Dir["completions/*.fish"]
    zsh_completion.install Dir["completions/_*"]
    pkgshare.install "config", "docs"
  end

  test do
    request = '{"jsonrpc":"2.0","id":1,"method":"hello"}'
    assert_match '"id":1', pipe_output("#{bin}/stdio_bus", "#{request}\n")
  end
end
