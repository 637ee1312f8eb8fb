//! The HTTP client: one endpoint, many requests at once, connections used again.
//!
//! HTTP/1.1 on plain connections; over TLS HTTP/2 where the endpoint offers it. A server bounds the streams of one
//! HTTP/2 connection (100 is usual), and a client that waits for a free one would make sessions wait for each other:
//! so requests are spread over lanes of `LANE` requests, each with its own connections. Buffers and windows are
//! small, so that a stream that is not read costs little and stops only its own sender.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, LOCATION, PROXY_AUTHORIZATION, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::proxy::{SocksV5, Tunnel};
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::client::proxy::matcher::Matcher;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep, timeout};
use tower_service::Service;

use super::complaint;
use super::config::{Auth, Config, MaxTokensField};
use super::errors::Failure;
use super::log::note;
use super::retry::{self, Cause};

/// Requests of one lane at once.
const LANE: usize = 64;

/// Window of an HTTP/2 stream and largest read buffer of an HTTP/1.1 connection, in bytes.
const WINDOW: u32 = 64 << 10;

/// Bytes of an error's body that are read.
const ERROR_BODY: usize = 64 << 10;

/// How long an error's body or the list of models may take.
const SIDE_TIMEOUT: Duration = Duration::from_secs(5);

type BoxError = Box<dyn std::error::Error + Send + Sync>;
type Pooled = legacy::Client<Timed, Full<Bytes>>;

/// A client of the configured endpoint.
pub struct Client {
    config: Rc<Config>,
    connector: Timed,
    headers: HeaderMap,
    lanes: RefCell<Vec<Rc<Lane>>>,
    /// The endpoint refused `stream_options` once.
    refuses_usage: Cell<bool>,
    /// The models that want `max_completion_tokens`.
    new_max_tokens: RefCell<HashSet<Rc<str>>>,
}

struct Lane {
    client: Pooled,
    running: Cell<usize>,
}

/// One of the requests of a lane, as long as its answer is read.
struct Place(Rc<Lane>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.running.set(self.0.running.get() - 1);
    }
}

/// An answer whose first bytes have come.
pub struct Opened {
    /// The first bytes of the body; none if it has none.
    pub first: Option<Bytes>,
    /// What the response calls itself.
    pub content_type: String,
    body: Incoming,
    idle: Option<(Duration, Pin<Box<Sleep>>)>,
    last: Instant,
    _place: Place,
}

impl Opened {
    /// As [`Self::next`]; with a limit, silence of that length is the end too.
    ///
    /// # Errors
    /// As [`Self::next`].
    pub async fn next_within(&mut self, limit: Option<Duration>) -> Result<Option<Bytes>, String> {
        match limit {
            None => self.next().await,
            Some(limit) => timeout(limit, self.next()).await.unwrap_or(Ok(None)),
        }
    }

    /// The next bytes of the body; none at its proper end.
    ///
    /// # Errors
    /// What happened to the connection, for people.
    pub async fn next(&mut self) -> Result<Option<Bytes>, String> {
        loop {
            let frame = match &mut self.idle {
                None => self.body.frame().await,
                Some((limit, timer)) => tokio::select! {
                    biased;
                    frame = self.body.frame() => frame,
                    () = timer.as_mut() => {
                        // The timer is set anew only when it rings: a token costs no timer.
                        let deadline = self.last + *limit;
                        if Instant::now() < deadline {
                            timer.as_mut().reset(deadline);
                            continue;
                        }
                        return Err(format!("silence for {} s", limit.as_secs_f64()));
                    }
                },
            };
            self.last = Instant::now();
            match frame {
                None => return Ok(None),
                Some(Err(error)) => return Err(cause(&error)),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) if data.is_empty() => {}
                    Ok(data) => return Ok(Some(data)),
                    Err(_trailers) => {}
                },
            }
        }
    }
}

/// The two things that an endpoint may want otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dialect {
    /// Whether the counts are asked for.
    pub include_usage: bool,
    /// Whether the limit is called `max_completion_tokens`.
    pub new_max_tokens: bool,
}

impl Client {
    /// A client for the configured endpoint. Nothing is connected yet.
    ///
    /// # Errors
    /// The configured certificates or the proxy cannot be used.
    pub fn new(config: Rc<Config>) -> Result<Self, String> {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(ACCEPT, HeaderValue::from_static("text/event-stream, application/json"));
        headers.insert(USER_AGENT, HeaderValue::from_static(concat!("openai-agent/", env!("CARGO_PKG_VERSION"))));
        let key = &config.api_key.0;
        if !key.is_empty() {
            let (name, value) = match config.auth {
                Auth::Bearer => (Some(AUTHORIZATION), format!("Bearer {key}")),
                Auth::ApiKey => (Some(HeaderName::from_static("api-key")), key.clone()),
                Auth::None => (None, String::new()),
            };
            if let Some(name) = name {
                let mut value = HeaderValue::from_str(&value).map_err(|_| "OPENAI_API_KEY cannot be a header")?;
                value.set_sensitive(true);
                headers.insert(name, value);
            }
        }
        let (dial, proxy_auth) = Dial::new(&config)?;
        if let Some(auth) = proxy_auth {
            headers.insert(PROXY_AUTHORIZATION, auth);
        }
        let tls = match config.chat_url.scheme_str() {
            Some("https") => HttpsConnectorBuilder::new()
                .with_tls_config(tls_config(&config)?)
                .https_only()
                .enable_all_versions()
                .wrap_connector(dial),
            // Never used for TLS: no certificates are read for a plain connection.
            _ => HttpsConnectorBuilder::new()
                .with_tls_config(client_config(rustls::RootCertStore::empty())?)
                .https_or_http()
                .enable_http1()
                .wrap_connector(dial),
        };
        for (name, value) in &config.extra_headers {
            headers.insert(name, value.clone());
        }
        let connector = Timed { inner: tls, limit: config.connect_timeout };
        let (lanes, refuses_usage) = (RefCell::default(), Cell::new(false));
        Ok(Self { config, connector, headers, lanes, refuses_usage, new_max_tokens: RefCell::default() })
    }

    /// How a request of this model is written now.
    pub fn dialect(&self, model: &str) -> Dialect {
        let new_max_tokens = match self.config.max_tokens_field {
            MaxTokensField::New => true,
            MaxTokensField::Old => false,
            MaxTokensField::Auto => self.new_max_tokens.borrow().contains(model),
        };
        Dialect { include_usage: !self.refuses_usage.get(), new_max_tokens }
    }

    /// Posts a prompt and waits for the first bytes of the answer; sends it again as often as that is allowed and
    /// promising. `body` writes the request in a dialect; nothing means that nobody wants the answer any more.
    ///
    /// # Errors
    /// Why there is no answer.
    pub async fn ask(&self, model: &Rc<str>, body: impl Fn(Dialect) -> Option<Vec<u8>>) -> Result<Opened, Failure> {
        let mut attempt = 0;
        loop {
            let dialect = self.dialect(model);
            let Some(bytes) = body(dialect) else { return Err(Failure::Network("nobody wants the answer".into())) };
            let (failure, wait) = match self.post(bytes).await {
                Ok(Answered::Opened(opened)) => return Ok(opened),
                Ok(Answered::Refused { status, headers, detail, text }) => {
                    if matches!(status, 400 | 422) && self.learn(model, dialect, &text) {
                        continue;
                    }
                    let dice = dice();
                    let cause = Cause::Status(status, &headers);
                    let wait = retry::decide(cause, attempt, self.config.max_retries, SystemTime::now(), dice);
                    (Failure::Status { status, detail }, wait)
                }
                Err((message, may_retry)) => {
                    let retries = if may_retry { self.config.max_retries } else { 0 };
                    let wait = retry::decide(Cause::Connection, attempt, retries, SystemTime::now(), dice());
                    (Failure::Network(message), wait)
                }
            };
            let Some(wait) = wait else { return Err(failure) };
            note!(Info, "{} Again in {} ms.", failure.text(&self.config.shown_url()), wait.as_millis());
            sleep(wait).await;
            attempt += 1;
        }
    }

    /// Whether the endpoint's complaint is about the dialect, and there is another one to try.
    fn learn(&self, model: &Rc<str>, dialect: Dialect, complaint: &str) -> bool {
        let names = |word: &str| complaint.contains(word);
        if dialect.include_usage && (names("stream_options") || names("include_usage")) {
            note!(Info, "The endpoint refuses stream_options; no counts are asked for from now on.");
            self.refuses_usage.set(true);
            return true;
        }
        let may_learn = self.config.max_tokens_field == MaxTokensField::Auto && self.config.max_tokens.is_some();
        if may_learn && !dialect.new_max_tokens && names("max_completion_tokens") {
            note!(Info, "{model} wants max_completion_tokens.");
            self.new_max_tokens.borrow_mut().insert(model.clone());
            return true;
        }
        false
    }

    /// One request. The flag of an error says whether it may be sent again.
    async fn post(&self, body: Vec<u8>) -> Result<Answered, (String, bool)> {
        let place = self.place();
        let mut request = Request::new(Full::new(Bytes::from(body)));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.config.chat_url.clone();
        request.headers_mut().clone_from(&self.headers);
        let sending = place.0.client.request(request);
        let response = match self.config.response_timeout {
            None => sending.await,
            Some(limit) => match timeout(limit, sending).await {
                Ok(response) => response,
                Err(_) => return Err((format!("no answer within {} s", limit.as_secs_f64()), false)),
            },
        };
        let response = response.map_err(|error| (cause(&error), true))?;
        let (head, body) = response.into_parts();
        let header = |name| head.headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
        let content_type = header(CONTENT_TYPE).unwrap_or_default().to_owned();
        if !head.status.is_success() {
            let text = read_body(body, ERROR_BODY).await;
            let mut detail = complaint::of_text(&text).map(|error| error.message).unwrap_or_default();
            if let (true, Some(location)) = (head.status.is_redirection(), header(LOCATION)) {
                detail = format!("it redirects to {location}; set OPENAI_BASE_URL accordingly");
            }
            return Ok(Answered::Refused { status: head.status.as_u16(), headers: head.headers, detail, text });
        }
        let idle = self.config.idle_timeout.map(|limit| (limit, Box::pin(sleep(limit))));
        let mut opened = Opened { first: None, content_type, body, idle, last: Instant::now(), _place: place };
        opened.first = opened.next().await.map_err(|message| {
            let is_silence = message.starts_with("silence");
            (message, !is_silence)
        })?;
        Ok(Answered::Opened(opened))
    }

    /// The ids of the models that the endpoint lists.
    ///
    /// # Errors
    /// Why there is no list, for people.
    pub async fn models(&self) -> Result<Vec<String>, String> {
        let mut request = Request::new(Full::default());
        *request.uri_mut() = self.config.models_url.clone();
        request.headers_mut().clone_from(&self.headers);
        let place = self.place();
        let fetch = async {
            let response = place.0.client.request(request).await.map_err(|error| cause(&error))?;
            let status = response.status();
            let text = read_body(response.into_body(), 4 << 20).await;
            match status.is_success() {
                true => Ok(text),
                false => Err(format!("HTTP {}", status.as_u16())),
            }
        };
        let text = timeout(SIDE_TIMEOUT, fetch).await.map_err(|_| "no answer within 5 s".to_owned())??;
        let list: ModelList = serde_json::from_str(&text).map_err(|error| format!("no list of models: {error}"))?;
        match list.data.is_empty() {
            true => Err("the list is empty".to_owned()),
            false => Ok(list.data.into_iter().map(|model| model.id).take(1000).collect()),
        }
    }

    /// A place in the first lane that has one, so that few requests share few connections.
    fn place(&self) -> Place {
        let mut lanes = self.lanes.borrow_mut();
        let free = lanes.iter().position(|lane| lane.running.get() < LANE);
        let lane = match free {
            Some(index) => lanes[index].clone(),
            None => {
                let lane = Rc::new(Lane { client: self.pooled(), running: Cell::new(0) });
                lanes.push(lane.clone());
                lane
            }
        };
        lane.running.set(lane.running.get() + 1);
        Place(lane)
    }

    fn pooled(&self) -> Pooled {
        legacy::Client::builder(OnThisThread)
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(Duration::from_secs(60))
            .pool_max_idle_per_host(LANE)
            .http1_max_buf_size(WINDOW as usize)
            .http2_initial_stream_window_size(WINDOW)
            .http2_initial_connection_window_size(WINDOW * LANE as u32)
            .http2_keep_alive_interval(Duration::from_secs(30))
            .build(self.connector.clone())
    }
}

enum Answered {
    Opened(Opened),
    Refused { status: u16, headers: HeaderMap, detail: String, text: String },
}

#[derive(serde::Deserialize)]
struct ModelList {
    data: Vec<Model>,
}

#[derive(serde::Deserialize)]
struct Model {
    id: String,
}

/// Evenly spread over 0 to 1.
fn dice() -> f64 {
    let [high, low, ..] = super::random::random();
    f64::from(u16::from_be_bytes([high, low])) / 65_536.0
}

/// The beginning of a body, as text; what fails or takes too long is missing.
async fn read_body(mut body: Incoming, limit: usize) -> String {
    let mut bytes = Vec::new();
    let reading = async {
        while let Some(Ok(frame)) = body.frame().await {
            if let Ok(data) = frame.into_data() {
                bytes.extend_from_slice(&data);
            }
            if bytes.len() >= limit {
                break;
            }
        }
    };
    let _ = timeout(SIDE_TIMEOUT, reading).await;
    String::from_utf8_lossy(&bytes).into_owned()
}

/// An error and what lies under it, without saying anything twice.
fn cause(error: &dyn std::error::Error) -> String {
    let mut said: Vec<String> = Vec::new();
    let mut next = Some(error);
    while let Some(error) = next {
        let words = error.to_string();
        let is_noise = words.starts_with("client error (") || said.iter().any(|before| before.contains(&words));
        if !is_noise {
            said.retain(|before| !words.contains(before.as_str()));
            said.push(words);
        }
        next = error.source();
    }
    match said.is_empty() {
        true => error.to_string(),
        false => said.join(": "),
    }
}

fn tls_config(config: &Config) -> Result<rustls::ClientConfig, String> {
    let mut roots = rustls::RootCertStore::empty();
    roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    let native = rustls_native_certs::load_native_certs();
    for error in native.errors {
        note!(Info, "Some of the system's root certificates cannot be read: {error}");
    }
    roots.add_parsable_certificates(native.certs);
    if let Some(path) = &config.ca_file {
        let unusable = |error: &dyn std::fmt::Display| format!("OPENAI_CA_FILE: {}: {error}", path.display());
        let certificates = CertificateDer::pem_file_iter(path).map_err(|error| unusable(&error))?;
        for certificate in certificates {
            let certificate = certificate.map_err(|error| unusable(&error))?;
            roots.add(certificate).map_err(|error| unusable(&error))?;
        }
    }
    client_config(roots)
}

fn client_config(roots: rustls::RootCertStore) -> Result<rustls::ClientConfig, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

/// hyper's own tasks stay on this thread, in one queue with ours.
#[derive(Clone, Copy)]
struct OnThisThread;

impl<F> hyper::rt::Executor<F> for OnThisThread
where
    F: Future + Send + 'static,
    F::Output: 'static,
{
    fn execute(&self, future: F) {
        tokio::task::spawn_local(future);
    }
}

/// How a TCP connection to the endpoint is made. There is one endpoint, so that is settled at the start.
#[derive(Clone)]
enum Dial {
    Direct(HttpConnector),
    /// Plain HTTP through a proxy that is asked for the whole URL.
    Forward(HttpConnector, Uri),
    Tunnel(Tunnel<HttpConnector>),
    Socks(SocksV5<HttpConnector>),
}

impl Dial {
    /// The way to the configured endpoint, and what a proxy wants to see in every request.
    fn new(config: &Config) -> Result<(Self, Option<HeaderValue>), String> {
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_nodelay(true);
        http.set_keepalive(Some(Duration::from_secs(60)));
        http.set_connect_timeout(config.connect_timeout);
        let host = config.chat_url.host().unwrap_or_default().trim_matches(['[', ']']);
        let address = host.parse::<std::net::IpAddr>();
        let is_here = host == "localhost" || address.is_ok_and(|address| address.is_loopback());
        let proxy = match is_here {
            true => None,
            false => Matcher::from_env().intercept(&config.chat_url),
        };
        let Some(proxy) = proxy else { return Ok((Self::Direct(http), None)) };
        let uri = proxy.uri().clone();
        match (uri.scheme_str(), config.chat_url.scheme_str()) {
            (Some("socks5" | "socks5h"), _) => {
                let socks = SocksV5::new(uri, http);
                Ok(match proxy.raw_auth() {
                    Some((user, password)) => (Self::Socks(socks.with_auth(user.into(), password.into())), None),
                    None => (Self::Socks(socks), None),
                })
            }
            (Some("http"), Some("https")) => {
                let tunnel = Tunnel::new(uri, http);
                Ok(match proxy.basic_auth() {
                    Some(auth) => (Self::Tunnel(tunnel.with_auth(auth.clone())), None),
                    None => (Self::Tunnel(tunnel), None),
                })
            }
            (Some("http"), _) => Ok((Self::Forward(http, uri), proxy.basic_auth().cloned())),
            (scheme, _) => Err(format!(
                "a proxy of the kind {:?} is not supported, only http and socks5 (HTTPS_PROXY, HTTP_PROXY, ALL_PROXY)",
                scheme.unwrap_or_default()
            )),
        }
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
            Self::Socks(socks) => Service::<Uri>::poll_ready(socks, context).map_err(Into::into),
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
                Ok(Dialed { stream, is_forward })
            })
        }
        match self {
            Self::Direct(http) => via(http.call(target), false),
            Self::Forward(http, proxy) => via(http.call(proxy.clone()), true),
            Self::Tunnel(tunnel) => via(tunnel.call(target), false),
            Self::Socks(socks) => via(socks.call(target), false),
        }
    }
}

/// A TCP connection, direct or by a proxy.
struct Dialed {
    stream: TokioIo<TcpStream>,
    is_forward: bool,
}

impl Connection for Dialed {
    fn connected(&self) -> Connected {
        self.stream.connected().proxy(self.is_forward)
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
struct Timed {
    inner: HttpsConnector<Dial>,
    limit: Option<Duration>,
}

impl Service<Uri> for Timed {
    type Response = <HttpsConnector<Dial> as Service<Uri>>::Response;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, target: Uri) -> Self::Future {
        let connecting = self.inner.call(target);
        let Some(limit) = self.limit else { return Box::pin(connecting) };
        Box::pin(async move {
            match timeout(limit, connecting).await {
                Ok(outcome) => outcome,
                Err(_) => Err(format!("no connection within {} s", limit.as_secs_f64()).into()),
            }
        })
    }
}
