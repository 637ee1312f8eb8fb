//! How the endpoint is reached: directly or through a proxy, with TLS where its URL says so, over connections that are used
//! again. Each carries one request at a time (HTTP/1.1), so that no session waits for another.
//!
//! There is one endpoint, so the way to it is settled at the start. A proxy whose port does not exist is an error: its
//! credentials would go to port 80.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use bytes::Bytes;
use http::{HeaderValue, Uri};
use http_body_util::Full;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::rt::{Read, Write};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::proxy::matcher::Matcher;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use stdio_bus_base::trust;
use tokio::task::spawn_local;
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::TlsConnector;
use tower_service::Service;

use super::config::{Config, has_port};
use super::secrets::Secrets;
use super::stdio::note;

/// Why there is no connection.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A connection to the endpoint.
pub type Sender = SendRequest<Full<Bytes>>;

/// How long a connection may take, TLS included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a connection is kept at least that is not used, and how many are.
const KEPT: Duration = Duration::from_secs(60);
const MOST_KEPT: usize = 1000;

/// Largest read buffer of a connection, in bytes: a stream that is not read costs little and stops only its own sender.
const BUFFER: usize = 64 << 10;

/// The proxy that the environment names for the endpoint.
///
/// # Errors
/// It cannot be used, and why.
pub fn proxy(config: &Config) -> Result<Option<Proxy>, String> {
    let host = host(&config.chat_url);
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
#[derive(Clone)]
pub struct Proxy {
    uri: Uri,
    /// What it wants to see in every request that it sees.
    pub basic: Option<HeaderValue>,
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
}

/// The way to the configured endpoint, and the connections that wait to be used again.
pub struct Dial {
    http: HttpConnector,
    proxy: Option<Proxy>,
    tls: Option<TlsConnector>,
    url: Uri,
    /// Whether requests name the whole URL, since a proxy reads them.
    pub is_forwarded: bool,
    kept: RefCell<Vec<(Sender, Instant)>>,
    has_sweeper: Cell<bool>,
}

impl Dial {
    /// The way to the configured endpoint.
    ///
    /// # Errors
    /// The configured certificates cannot be used, and why.
    pub fn new(config: &Config, proxy: Option<Proxy>) -> Result<Self, String> {
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_nodelay(true);
        http.set_keepalive(Some(Duration::from_secs(60)));
        http.set_connect_timeout(Some(CONNECT_TIMEOUT));
        let tls = client_config(config)?.map(|config| TlsConnector::from(Arc::new(config)));
        let is_forwarded = proxy.is_some() && tls.is_none();
        let (kept, has_sweeper) = (RefCell::default(), Cell::default());
        Ok(Self { http, proxy, tls, url: config.chat_url.clone(), is_forwarded, kept, has_sweeper })
    }

    /// A connection that has served before and is still open.
    pub fn kept(&self) -> Option<Sender> {
        let mut kept = self.kept.borrow_mut();
        std::iter::from_fn(|| kept.pop()).map(|(sender, _)| sender).find(Sender::is_ready)
    }

    /// Has a connection kept when its answer has been read.
    pub fn keep(self: &Rc<Self>, mut sender: Sender) {
        let dial = self.clone();
        spawn_local(async move {
            if sender.ready().await.is_err() || dial.kept.borrow().len() >= MOST_KEPT {
                return;
            }
            dial.kept.borrow_mut().push((sender, Instant::now()));
            // One of these tasks looks after what all have kept.
            if dial.has_sweeper.replace(true) {
                return;
            }
            while !dial.kept.borrow().is_empty() {
                sleep(KEPT).await;
                dial.kept.borrow_mut().retain(|(sender, since)| !sender.is_closed() && since.elapsed() < KEPT);
            }
            dial.has_sweeper.set(false);
        });
    }

    /// A new connection.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn connect(&self) -> Result<Sender, BoxError> {
        let late = || format!("no connection within {} s", CONNECT_TIMEOUT.as_secs());
        timeout(CONNECT_TIMEOUT, self.dial()).await.unwrap_or_else(|_| Err(late().into()))
    }

    async fn dial(&self) -> Result<Sender, BoxError> {
        let mut http = self.http.clone();
        let stream = match (&self.proxy, &self.tls) {
            (None, _) => http.call(self.url.clone()).await?,
            // It is asked for the whole URL.
            (Some(proxy), None) => http.call(proxy.uri.clone()).await?,
            (Some(Proxy { uri, basic }), Some(_)) => {
                let tunnel = Tunnel::new(uri.clone(), http);
                let mut tunnel = basic.iter().fold(tunnel, |tunnel, auth| tunnel.with_auth(auth.clone()));
                tunnel.call(self.url.clone()).await?
            }
        };
        match &self.tls {
            None => begin(stream).await,
            Some(tls) => {
                let name = ServerName::try_from(host(&self.url).to_owned())?;
                begin(TokioIo::new(tls.connect(name, stream.into_inner()).await?)).await
            }
        }
    }
}

/// The host of a URL, an IPv6 address without its brackets.
fn host(url: &Uri) -> &str {
    url.host().unwrap_or_default().trim_matches(['[', ']'])
}

async fn begin(stream: impl Read + Write + Unpin + 'static) -> Result<Sender, BoxError> {
    let (sender, connection) = http1::Builder::new().max_buf_size(BUFFER).handshake(stream).await?;
    // What becomes of it is told to who sends.
    spawn_local(async move { drop(connection.await) });
    Ok(sender)
}

/// How TLS connections to the configured endpoint are made, if they are.
fn client_config(config: &Config) -> Result<Option<ClientConfig>, String> {
    let unusable = |problem| format!("OPENAI_CA_FILE: {problem}");
    let own = match &config.ca_file {
        Some(path) => trust::certificates(path).map_err(unusable)?,
        None => Vec::new(),
    };
    if config.chat_url.scheme_str() != Some("https") {
        // No certificates of the system are read for a plain connection.
        return Ok(None);
    }
    let unreadable = |error: &dyn std::fmt::Display| {
        note!(Info, "Some of the system's root certificates cannot be read: {error}");
    };
    let mut tls =
        if config.tls_insecure { trust::anyone()? } else { trust::authorities(own, unreadable).map_err(unusable)? };
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Some(tls))
}
