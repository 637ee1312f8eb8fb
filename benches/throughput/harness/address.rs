//! Where clients connect.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::web;

/// What clients connect to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// TCP over the loopback.
    Tcp,
    /// A Unix socket.
    Unix,
    /// A WebSocket over TCP.
    WebSocket {
        /// Seconds of silence until a client is pinged; 0 is never.
        ping_sec: u32,
    },
    /// MCP over HTTP over TCP.
    Http,
}

/// Where they connect.
#[derive(Clone, Debug)]
pub enum Address {
    /// A port of the loopback.
    Tcp(u16),
    /// A path.
    Unix(PathBuf),
    /// A port of the loopback, where WebSocket is spoken.
    WebSocket {
        /// Which.
        port: u16,
        /// For what is asked there.
        path: &'static str,
    },
    /// A port of the loopback, where MCP over HTTP is spoken.
    Http(u16),
}

impl Address {
    /// Where nobody listens yet.
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

    /// A connection. A WebSocket's handshake is over.
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

    /// A connection that never waits.
    pub fn connect_nonblocking(&self) -> io::Result<OwnedFd> {
        let socket = self.connect()?;
        rustix::io::ioctl_fionbio(&socket, true)?;
        Ok(socket)
    }
}

fn tcp(port: u16) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// A port that nobody has at the moment.
pub fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}
