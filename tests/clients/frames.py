"""A WebSocket on a plain socket, for bytes that no library sends: frames of any shape, cut anywhere."""

import base64
import json
import os
import socket
import struct

PATIENCE = 60
CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10


def frame(opcode, payload=b"", final=True, reserved=0, mask=b"mask", length=None):
    """A client's frame. `length` is a length field that is not minimal, or wrong: its bytes."""
    payload = payload.encode() if isinstance(payload, str) else payload
    if length is None:
        size = len(payload)
        if size < 126:
            length = bytes([size])
        elif size <= 0xFFFF:
            length = b"\x7e" + struct.pack(">H", size)
        else:
            length = b"\x7f" + struct.pack(">Q", size)
    first = (final << 7) | (reserved << 4) | opcode
    if mask is None:
        return bytes([first]) + length + payload
    key = (mask * (len(payload) // 4 + 1))[: len(payload)]
    masked = (int.from_bytes(payload, "big") ^ int.from_bytes(key, "big")).to_bytes(len(payload), "big")
    return bytes([first, length[0] | 0x80]) + length[1:] + mask + masked


def closing(code, reason=b""):
    return frame(CLOSE, struct.pack(">H", code) + reason)


def request(id, **params):
    return json.dumps({"jsonrpc": "2.0", "id": id, "method": "echo", "params": params})


def head(host, path, *fields, line=None):
    """A WebSocket request. These fields replace its own; a field without a value is omitted."""
    wanted = {"Host": host, "Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13",
              "Sec-WebSocket-Key": base64.b64encode(os.urandom(16)).decode()}
    more = []
    for field in fields:
        name, _, value = field.partition(": ")
        if not value:
            wanted.pop(name)
        elif name in wanted:
            wanted[name] = value
        else:
            more.append(field)
    lines = [line or f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in wanted.items()), *more]
    return "\r\n".join([*lines, "", ""]).encode()


class Raw:
    """A connection accessed by bytes rather than messages."""

    def __init__(self, url):
        self.host, _, path = url.removeprefix("ws://").partition("/")
        self.path = "/" + path
        address, _, port = self.host.rpartition(":")
        self.socket = socket.create_connection((address, int(port)), PATIENCE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.received = b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def send(self, *parts, cut=None):
        sent = b"".join(parts)
        for at in range(0, len(sent), cut or len(sent)):
            self.socket.sendall(sent[at : at + (cut or len(sent))])

    def more(self):
        """Whether more bytes are available; a reset counts as an end."""
        try:
            received = self.socket.recv(65536)
        except ConnectionResetError:
            received = b""
        self.received += received
        return bool(received)

    def take(self, size):
        while len(self.received) < size:
            assert self.more(), f"the connection ended after {self.received!r}"
        taken, self.received = self.received[:size], self.received[size:]
        return taken

    def answer(self):
        """The HTTP status, the fields by lower-case name, and the body of a refusal."""
        while b"\r\n\r\n" not in self.received:
            assert self.more(), f"no answer but {self.received!r}"
        text, _, self.received = self.received.partition(b"\r\n\r\n")
        status, *lines = text.decode().split("\r\n")
        fields = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        body = self.take(int(fields["content-length"])) if "content-length" in fields else b""
        return int(status.split()[1]), fields, body

    def ask(self, *fields, **how):
        """The response to a request with these changed fields."""
        self.send(head(self.host, self.path, *fields, **how))
        return self.answer()

    def upgrade(self, *fields):
        status, fields, _ = self.ask(*fields)
        assert status == 101, status
        return self

    def frame(self):
        """The next frame: its opcode and payload. Here a server's are neither fragmented nor masked."""
        first, second = self.take(2)
        assert first & 0x70 == 0 and second & 0x80 == 0, f"a frame begins with {first:#x} {second:#x}"
        assert first & 0x80, "a frame is not the last of its message"
        size = second
        if second >= 126:
            size = int.from_bytes(self.take(2 if second == 126 else 8), "big")
        return first & 0x0F, self.take(size)

    def message(self):
        """The next text message, as JSON. Skips the server's pings."""
        while (found := self.frame())[0] == PING:
            self.send(frame(PONG, found[1]))
        assert found[0] == TEXT, found
        return json.loads(found[1])

    def ends(self):
        """The code and reason of the server's close, which only the end of the connection may follow."""
        while (found := self.frame())[0] in (TEXT, PING, PONG):
            pass
        assert found[0] == CLOSE and len(found[1]) != 1, found
        try:
            self.send(frame(CLOSE, found[1]))
        except OSError:
            # The server may disconnect once it has sent the reason.
            pass
        while self.more():
            pass
        assert self.received == b"", f"after its close frame came {self.received!r}"
        return (int.from_bytes(found[1][:2], "big") if found[1] else None), found[1][2:].decode()
