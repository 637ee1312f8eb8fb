//! The protocols that stdio-bus speaks, without I/O: bytes become requests, frames and lines, and answers become bytes.
//! Daemon, bridge and operators' commands share it. Nothing here knows a socket, a clock or a thread; time is an
//! argument.
//!
//! # A request, from its bytes to what it asks for
//!
//! The bytes of a connection become a head ([`http1`]), and the head becomes a question of MCP ([`mcp`]):
//!
//! ```
//! use stdio_bus_proto::http1::{HeadReader, Status};
//! use stdio_bus_proto::mcp::Asked;
//! use stdio_bus_proto::mcp::asked::Verb;
//!
//! let received = b"POST /mcp/tools HTTP/1.1\r\nHost: 127.0.0.1:9000\r\nContent-Type: application/json\r\n\
//!     Accept: application/json, text/event-stream\r\nContent-Length: 2\r\n\r\n{}";
//!
//! // Half a head is none yet, however the bytes are cut.
//! let mut reader = HeadReader::default();
//! assert_eq!(reader.read(&received[..40]), Ok(None));
//! let head = reader.read(received).expect("it is a request").expect("it is complete");
//! assert_eq!((head.path, &received[head.length..]), ("/mcp/tools", &b"{}"[..]));
//!
//! let asked = Asked::of(&head, "/mcp").expect("MCP allows it");
//! assert_eq!((asked.verb, asked.pool.as_deref()), (Verb::Post, Some("tools")));
//! // Elsewhere there is nothing, and the fault is the response.
//! assert_eq!(Asked::of(&head, "/other").unwrap_err().status, Status::NotFound);
//! ```
//!
//! # Reading order
//!
//! 1. [`http1`]: HTTP/1.1 and HTTP/1.0, heads and bodies. All others but [`proxy`] build on it.
//! 2. [`websocket`]: the handshake over it, and frames that are lines.
//! 3. [`mcp`]: MCP's Streamable HTTP over it, in both eras.
//! 4. [`acp`]: ACP's Streamable HTTP over it, whose bodies are read as those of [`mcp`].
//! 5. [`proxy`]: the PROXY protocol, ahead of any of them.
//! 6. [`access`]: who may come in over HTTP, whatever is spoken above it.
//!
//! Each of them begins with its own reading order. The daemon's listeners are in `src/shell/http` of the package
//! `stdio-bus`, the bridge, which is a client of all of them, in its `src/commands/daemon/bridge`.

#![warn(missing_docs, unreachable_pub)]

pub mod access;
pub mod acp;
pub mod http1;
pub mod mcp;
pub mod proxy;
pub mod websocket;

#[cfg(any(test, feature = "testing"))]
pub mod testing;
