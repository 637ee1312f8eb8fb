//! A server's answer to a WebSocket handshake that it accepts: 101 and its fields.

use std::fmt;

use super::key::HandshakeKey;
use crate::http1::{Head, Status, is_word};

/// A successful handshake. [`fmt::Display`] writes the whole head.
#[derive(Clone, Copy, Debug)]
pub struct Accepted<'a> {
    /// The request's key.
    pub key: HandshakeKey<'a>,
    /// `Acp-Connection-Id`: visible ASCII that cannot be guessed.
    pub connection_id: &'a str,
    /// The subprotocol chosen from those offered.
    pub protocol: Option<&'a str>,
}

impl fmt::Display for Accepted<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        debug_assert!(is_word(self.connection_id) && self.protocol.is_none_or(is_word));
        let head = Head::answer(Status::SwitchingProtocols)
            .field("Upgrade", "websocket")
            .field("Connection", "Upgrade")
            .field("Sec-WebSocket-Accept", self.key.accept())
            .field("Acp-Connection-Id", self.connection_id)
            .field_if("Sec-WebSocket-Protocol", self.protocol);
        out.write_str(&head.end())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_websocket_is_accepted_with_its_key_and_its_id() {
        let key = HandshakeKey::new(b"dGhlIHNhbXBsZSBub25jZQ==").unwrap();
        let head = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
            Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\nAcp-Connection-Id: a1b2\r\n";
        let mut accepted = Accepted { key, connection_id: "a1b2", protocol: None };
        assert_eq!(accepted.to_string(), format!("{head}\r\n"));
        accepted.protocol = Some("acp");
        assert_eq!(accepted.to_string(), format!("{head}Sec-WebSocket-Protocol: acp\r\n\r\n"));
    }
}
