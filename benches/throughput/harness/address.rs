//! Addresses that clients connect to.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::web;

/// A kind of connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// TCP over loopback.
    Tcp,
    /// A Unix socket.
    Unix,
    /// A WebSocket over TCP.
    WebSocket {
        /// Seconds of silence before a client is pinged; 0 is never.
        ping_sec: u32,
    },
    /// MCP over HTTP over TCP.
    Http,
}

#[derive(Clone, Debug)]
pub enum Address {
    /// A port on loopback.
    Tcp(u16),
    /// A path.
    Unix(PathBuf),
    /// A port on loopback with WebSocket.
    WebSocket {
        port: u16,
        /// The request path.
        path: &'static str,
    },
    /// A port on loopback with MCP over HTTP.
    Http(u16),
}

impl Address {
    /// An unused address.
    pub fn free(transport: Transport, files: &Path) -> io::Result<Self> {
        Ok(match transport {
            Transport::Tcp => Self::Tcp(free_port()?),
            Transport::Unix => Self::Unix(files.join("socket")),
            Transport::WebSocket { .. } => Self::WebSocket { port: free_port()?, path: "/acp" },
            Transport::Http => Self::Http(free_port()?),
        })
    }

    /// Whether messages are frames.
    pub fn is_web(&self) -> bool {
        matches!(self, Self::WebSocket { .. })
    }

    /// Whether messages are requests and answers of HTTP.
    pub fn is_http(&self) -> bool {
        matches!(self, Self::Http(_))
    }

    /// Its port.
    ///
    /// # Errors
    /// A path has none.
    pub fn port(&self) -> io::Result<u16> {
        match self {
            Self::Tcp(port) | Self::WebSocket { port, .. } | Self::Http(port) => Ok(*port),
            Self::Unix(_) => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    /// A connection, after the handshake if it is a WebSocket.
    pub fn connect(&self) -> io::Result<OwnedFd> {
        match self {
            Self::Tcp(port) | Self::Http(port) => Ok(tcp(*port)?.into()),
            Self::WebSocket { port, path } => {
                let mut stream = tcp(*port)?;
                stream.set_read_timeout(Some(Duration::from_secs(20)))?;
                web::upgrade(&mut stream, *port, path)?;
                Ok(stream.into())
            }
            Self::Unix(path) => Ok(UnixStream::connect(path)?.into()),
        }
    }

    /// A non-blocking connection.
    pub fn connect_nonblocking(&self) -> io::Result<OwnedFd> {
        let socket = self.connect()?;
        rustix::io::ioctl_fionbio(&socket, true)?;
        Ok(socket)
    }
}

fn tcp(port: u16) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(("127.0.0.1", port))?;
    // Nobody listens yet on a port that the kernel may choose for outgoing connections, too: then a connection can be
    // its own peer, and the daemon finds its port taken.
    if stream.local_addr()? == stream.peer_addr()? {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// A port that is unused at the moment.
pub fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}
