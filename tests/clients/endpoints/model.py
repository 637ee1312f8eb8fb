"""Writes the smallest model that llama.cpp runs and that says what a test expects (GGUF, 5 MB).

It has no knowledge: each token leads to one other token, and attention and feed-forward are zero. So what it says
depends on the last token of the prompt alone, which its template makes the last word of the user. It knows four such
words; after any other it says " I hear you.".
"""

import struct
import sys

TOKENS = 512
CONTEXT = 65536
HEADS = 8
HEAD = TOKENS // HEADS
# One of them: the keys and values of 65,536 tokens fit into 16 MB.
KEY_HEADS = 1
FEED_FORWARD = 32

UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 2, 3, 4, 5, 6
UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9

END = 2
FIRST_BYTE = 3

# The answer after a word of the user.
SAID = {
    "count!": ["one", ", two", ", three"],
    "think!": ["<think>", "Two and two.", "</think>", "Four."],
    "check!": [b"\xe2", b"\x9c", b"\x93"],
}
# This one is endless.
FOR_EVER = ("for ever!", [" on", " and"])
OTHERWISE = [" I", " hear", " you", "."]

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{{ messages[-1].content }}"


def vocabulary():
    """The tokens, their types, and the successor of each."""
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    types = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256

    def token(piece):
        if isinstance(piece, bytes):
            return FIRST_BYTE + piece[0]
        tokens.append(piece)
        types.append(USER_DEFINED)
        return len(tokens) - 1

    otherwise = [token(piece) for piece in OTHERWISE]
    follows = {}
    for word, pieces in SAID.items():
        chain = [token(word), *map(token, pieces), END]
        follows.update(zip(chain, chain[1:]))
    word, circle = FOR_EVER
    first, *others = map(token, circle)
    chain = [token(word), first, *others, first]
    follows.update(zip(chain, chain[1:]))
    chain = [*otherwise, END]
    follows.update(zip(chain, chain[1:]))
    while len(tokens) < TOKENS:
        tokens.append(f"<unused {len(tokens)}>")
        types.append(UNUSED)
    return tokens, types, [follows.get(number, otherwise[0]) for number in range(TOKENS)]


def string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def entry(key, kind, value):
    """A header key and its value."""
    return string(key) + struct.pack("<I", kind) + value


def array(kind, values):
    return struct.pack("<IQ", kind, len(values)) + b"".join(values)


def number(key, value):
    return entry(key, UINT32, struct.pack("<I", value))


def flag(key, value):
    return entry(key, BOOL, struct.pack("<?", value))


def text(key, value):
    return entry(key, STRING, string(value))


def header(tokens, types):
    return [
        text("general.architecture", "llama"),
        text("general.name", "tiny"),
        number("llama.context_length", CONTEXT),
        number("llama.embedding_length", TOKENS),
        number("llama.block_count", 1),
        number("llama.feed_forward_length", FEED_FORWARD),
        number("llama.attention.head_count", HEADS),
        number("llama.attention.head_count_kv", KEY_HEADS),
        entry("llama.attention.layer_norm_rms_epsilon", FLOAT32, struct.pack("<f", 1e-5)),
        number("llama.rope.dimension_count", HEAD),
        number("llama.vocab_size", TOKENS),
        text("tokenizer.ggml.model", "llama"),
        entry("tokenizer.ggml.tokens", ARRAY, array(STRING, [string(token) for token in tokens])),
        entry("tokenizer.ggml.scores", ARRAY, array(FLOAT32, [struct.pack("<f", 0)] * TOKENS)),
        entry("tokenizer.ggml.token_type", ARRAY, array(INT32, [struct.pack("<i", kind) for kind in types])),
        number("tokenizer.ggml.unknown_token_id", 0),
        number("tokenizer.ggml.bos_token_id", 1),
        number("tokenizer.ggml.eos_token_id", END),
        flag("tokenizer.ggml.add_bos_token", False),
        flag("tokenizer.ggml.add_space_prefix", False),
        text("tokenizer.chat_template", TEMPLATE),
    ]


def matrix(rows, columns, weights=(), weight=1.0):
    """Zeros, except one weight at each of these positions (row, column)."""
    data = bytearray(4 * rows * columns)
    for row, column in weights:
        struct.pack_into("<f", data, 4 * (row * columns + column), weight)
    return (columns, rows), bytes(data)


def ones(length):
    return (length,), struct.pack("<f", 1) * length


def tensors(follows):
    return {
        # A token is one dimension, through all layers.
        "token_embd.weight": matrix(TOKENS, TOKENS, [(token, token) for token in range(TOKENS)]),
        "output_norm.weight": ones(TOKENS),
        "output.weight": matrix(TOKENS, TOKENS, [(after, token) for token, after in enumerate(follows)], 10.0),
        "blk.0.attn_norm.weight": ones(TOKENS),
        "blk.0.attn_q.weight": matrix(TOKENS, TOKENS),
        "blk.0.attn_k.weight": matrix(KEY_HEADS * HEAD, TOKENS),
        "blk.0.attn_v.weight": matrix(KEY_HEADS * HEAD, TOKENS),
        "blk.0.attn_output.weight": matrix(TOKENS, TOKENS),
        "blk.0.ffn_norm.weight": ones(TOKENS),
        "blk.0.ffn_gate.weight": matrix(FEED_FORWARD, TOKENS),
        "blk.0.ffn_up.weight": matrix(FEED_FORWARD, TOKENS),
        "blk.0.ffn_down.weight": matrix(TOKENS, FEED_FORWARD),
    }


def padding(length):
    return bytes(-length % 32)


def write(path):
    tokens, types, follows = vocabulary()
    entries, weights = header(tokens, types), tensors(follows)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(weights), len(entries)) + b"".join(entries)
    offset = 0
    for name, (sizes, data) in weights.items():
        head += string(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, 0, offset)
        offset += len(data) + len(padding(len(data)))
    with open(path, "wb") as file:
        file.write(head + padding(len(head)))
        for _, data in weights.values():
            file.write(data + padding(len(data)))


if __name__ == "__main__":
    write(sys.argv[1])
