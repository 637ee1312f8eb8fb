//! How the endpoint is reached: directly or through a proxy, within the configured time, with TLS where its URL says so.
//!
//! There is one endpoint, so the way to it is settled at the start. A proxy whose port does not exist is an error: its
//! credentials would go to port 80.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use base64::Engine as _;
use http::{HeaderValue, Uri};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::client::proxy::matcher::Matcher;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use stdio_bus_base::trust;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tower_service::Service;

use super::config::{Config, has_port};
use super::log::note;
use super::secrets::Secrets;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// How long a connection may take, TLS included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How often a connection was used. What a server does to one that has served before is no trouble of the request.
#[derive(Clone, Debug, Default)]
pub struct Uses(Arc<AtomicUsize>);

impl Uses {
    /// An answer began on the connection.
    pub fn count(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether an answer ever began on it.
    pub fn any(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }
}

/// The proxy that the environment names for the endpoint.
///
/// # Errors
/// It cannot be used, and why.
pub fn proxy(config: &Config) -> Result<Option<Proxy>, String> {
    let host = config.chat_url.host().unwrap_or_default().trim_matches(['[', ']']);
    let address = host.parse::<std::net::IpAddr>();
    let is_here = host == "localhost" || address.is_ok_and(|address| address.is_loopback());
    if is_here {
        return Ok(None);
    }
    let Some(found) = Matcher::from_env().intercept(&config.chat_url) else { return Ok(None) };
    let names = "HTTPS_PROXY, HTTP_PROXY, ALL_PROXY";
    let uri = found.uri().clone();
    if !uri.authority().is_some_and(has_port) {
        return Err(format!("the port of a proxy is not a number from 1 to 65535 ({names})"));
    }
    if uri.scheme_str() != Some("http") {
        let scheme = uri.scheme_str().unwrap_or_default();
        return Err(format!("a proxy of the kind {scheme:?} is not supported, only http ({names})"));
    }
    Ok(Some(Proxy { uri, basic: found.basic_auth().cloned() }))
}

/// A proxy on the way to the endpoint.
pub struct Proxy {
    uri: Uri,
    basic: Option<HeaderValue>,
}

impl Proxy {
    /// Tells what of it must not be told.
    pub fn hide(&self, secrets: &mut Secrets) {
        let credentials = self.basic.as_ref().and_then(|basic| Some(basic.to_str().ok()?.split_once(' ')?.1));
        let Some(credentials) = credentials else { return };
        secrets.add(credentials);
        let decoded = base64::engine::general_purpose::STANDARD.decode(credentials).unwrap_or_default();
        if let Some((_, password)) = String::from_utf8_lossy(&decoded).split_once(':') {
            secrets.add(password);
        }
    }

    /// What it wants to see in every request, where it sees them.
    pub fn header(&self, config: &Config) -> Option<&HeaderValue> {
        let is_forward = config.chat_url.scheme_str() != Some("https");
        self.basic.as_ref().filter(|_| is_forward)
    }
}

/// The way to the configured endpoint.
///
/// # Errors
/// The configured certificates cannot be used, and why.
pub fn connector(config: &Config, proxy: Option<&Proxy>) -> Result<Timed, String> {
    let dial = Dial::new(config, proxy);
    let tls = client_config(config)?;
    let builder = HttpsConnectorBuilder::new().with_tls_config(tls);
    let inner = match config.chat_url.scheme_str() {
        Some("https") => builder.https_only().enable_all_versions().wrap_connector(dial),
        _ => builder.https_or_http().enable_http1().wrap_connector(dial),
    };
    Ok(Timed(inner))
}

/// How TLS connections to the configured endpoint are made.
///
/// # Errors
/// `OPENAI_CA_FILE` cannot be used, and why.
fn client_config(config: &Config) -> Result<ClientConfig, String> {
    let unusable = |problem| format!("OPENAI_CA_FILE: {problem}");
    let own = match &config.ca_file {
        Some(path) => trust::certificates(path).map_err(unusable)?,
        None => Vec::new(),
    };
    if config.chat_url.scheme_str() != Some("https") {
        // No certificates are read for a plain connection.
        return trust::nobody();
    }
    if config.tls_insecure {
        return trust::anyone();
    }
    let unreadable = |error: &dyn std::fmt::Display| {
        note!(Info, "Some of the system's root certificates cannot be read: {error}");
    };
    trust::authorities(own, unreadable).map_err(unusable)
}

/// How a TCP connection to the endpoint is made.
#[derive(Clone)]
pub enum Dial {
    /// No proxy.
    Direct(HttpConnector),
    /// Plain HTTP through a proxy that is asked for the whole URL.
    Forward(HttpConnector, Uri),
    /// TLS through an HTTP proxy that is asked for a tunnel.
    Tunnel(Tunnel<HttpConnector>),
}

impl Dial {
    fn new(config: &Config, proxy: Option<&Proxy>) -> Self {
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_nodelay(true);
        http.set_keepalive(Some(Duration::from_secs(60)));
        http.set_connect_timeout(Some(CONNECT_TIMEOUT));
        let Some(Proxy { uri, basic }) = proxy else { return Self::Direct(http) };
        if config.chat_url.scheme_str() != Some("https") {
            return Self::Forward(http, uri.clone());
        }
        let tunnel = Tunnel::new(uri.clone(), http);
        Self::Tunnel(match basic {
            Some(auth) => tunnel.with_auth(auth.clone()),
            None => tunnel,
        })
    }
}

impl Service<Uri> for Dial {
    type Response = Dialed;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Dialed, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        match self {
            Self::Direct(http) | Self::Forward(http, _) => http.poll_ready(context).map_err(Into::into),
            Self::Tunnel(tunnel) => tunnel.poll_ready(context).map_err(Into::into),
        }
    }

    fn call(&mut self, target: Uri) -> Self::Future {
        fn via<F, E>(connecting: F, is_forward: bool) -> Pin<Box<dyn Future<Output = Result<Dialed, BoxError>> + Send>>
        where
            F: Future<Output = Result<TokioIo<TcpStream>, E>> + Send + 'static,
            E: Into<BoxError>,
        {
            Box::pin(async move {
                let stream = connecting.await.map_err(Into::into)?;
                Ok(Dialed { stream, is_forward, uses: Uses::default() })
            })
        }
        match self {
            Self::Direct(http) => via(http.call(target), false),
            Self::Forward(http, proxy) => via(http.call(proxy.clone()), true),
            Self::Tunnel(tunnel) => via(tunnel.call(target), false),
        }
    }
}

/// A TCP connection, direct or by a proxy.
pub struct Dialed {
    stream: TokioIo<TcpStream>,
    is_forward: bool,
    uses: Uses,
}

impl Connection for Dialed {
    fn connected(&self) -> Connected {
        self.stream.connected().proxy(self.is_forward).extra(self.uses.clone())
    }
}

impl Read for Dialed {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl Write for Dialed {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }
}

/// The whole way to a usable connection, within the configured time.
#[derive(Clone)]
pub struct Timed(HttpsConnector<Dial>);

impl Service<Uri> for Timed {
    type Response = <HttpsConnector<Dial> as Service<Uri>>::Response;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, target: Uri) -> Self::Future {
        let connecting = self.0.call(target);
        Box::pin(async move {
            match timeout(CONNECT_TIMEOUT, connecting).await {
                Ok(outcome) => outcome,
                Err(_) => Err(format!("no connection within {} s", CONNECT_TIMEOUT.as_secs()).into()),
            }
        })
    }
}
