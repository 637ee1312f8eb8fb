//! The HTTP client: one endpoint, many requests at once, connections used again.
//!
//! The invariant: whatever this module reports of an endpoint has gone through [`Secrets::mask`].
//!
//! How the endpoint is reached: directly or through a proxy, with TLS if its URL says so, over connections that are
//! reused. Each carries one request at a time (HTTP/1.1), so that no session waits for another.
//!
//! There is one endpoint, so the route to it is fixed at startup. A proxy whose port is out of range is an error: its
//! credentials would go to port 80.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::error::Error;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use bytes::Bytes;
use http::header::{
    ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, HOST, LOCATION, PROXY_AUTHORIZATION,
    USER_AGENT,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, Uri};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::proxy::matcher::Matcher;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use stdio_bus_base::trust;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::spawn_local;
use tokio::time::{Instant, Sleep, sleep, timeout};
use tokio_rustls::TlsConnector;
use tower_service::Service;

use super::answer::{Answer, Ending, Piece};
use super::body::{Broken, Decoder};
use super::config::{Config, has_port};
use super::dialect::{self, Dialect, Refusal};
use super::failure::{self, Failure, Refused};
use super::hop::{Greeting, Hindrance, Watched, tunnel};
use super::secrets::{Keyring, Secrets};
use super::stdio::note;

/// Bytes of an error's body that are read.
const ERROR_BODY: usize = 64 << 10;

/// Bytes of a list of models that are read.
const LIST_BODY: usize = 4 << 20;

/// How long an error's body or the list of models may take.
const SIDE_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum number of reads of one stream before other streams get their turn, however much data is waiting.
const BURST: usize = 32;

/// Models of which something is remembered; their names come from clients.
const MOST_DIALECTS: usize = 1000;

/// Headers in which servers send a request id, for their support and ours.
const REQUEST_IDS: &str = "x-request-id request-id apim-request-id x-amzn-requestid x-generation-id cf-ray";

/// A client of the configured endpoint.
pub struct Client {
    config: Rc<Config>,
    secrets: Rc<Secrets>,
    keyring: Keyring,
    proxy: Option<Proxy>,
    /// Created on first use: it reads the system's certificates.
    dial: OnceCell<Rc<Dial>>,
    headers: HeaderMap,
    /// The models that need something other than the default.
    dialects: RefCell<HashMap<Rc<str>, Dialect>>,
}

/// An answer whose first bytes have arrived.
pub struct Opened {
    /// The first bytes of the body; none if it has none.
    pub first: Option<Bytes>,
    /// The content type of the response.
    pub content_type: String,
    body: Incoming,
    decoder: Decoder,
    idle: Option<(Duration, Pin<Box<Sleep>>)>,
    last: Instant,
}

impl Opened {
    /// Reads the answer, calling `sink` with its pieces, and `forwarded` after the pieces of each read. Returns how it
    /// ended, and whether the endpoint said that it was over before the body ended.
    ///
    /// # Errors
    /// The error of `forwarded`.
    pub async fn read(
        &mut self,
        limit: usize,
        sink: &mut impl FnMut(Piece<'_>),
        forwarded: impl AsyncFn() -> Result<(), Failure>,
    ) -> Result<(Result<Ending, Failure>, bool), Failure> {
        let mut answer = Answer::new(limit);
        let (mut classify, mut burst) = (None, 0);
        let mut next = self.first.take();
        while let Some(bytes) = next {
            answer.push(&bytes, &mut *sink);
            forwarded().await?;
            if answer.is_over() {
                break;
            }
            burst += 1;
            if burst % BURST == 0 {
                tokio::task::yield_now().await;
            }
            // If the endpoint seems to have finished, silence is the end, too.
            let read = match answer.grace() {
                None => self.next().await,
                Some(limit) => timeout(limit, self.next()).await.unwrap_or(Ok(None)),
            };
            next = read.unwrap_or_else(|broken| {
                classify = Some(broken.text);
                None
            });
        }
        let is_over = answer.is_over() && classify.is_none();
        if classify.is_none() {
            answer.end(&mut *sink);
            forwarded().await?;
        }
        Ok((answer.finish(classify, &self.content_type, sink), is_over))
    }

    /// The next bytes of the body; none at its proper end.
    ///
    /// # Errors
    /// What happened to the connection or to the body.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Broken> {
        while let Some(data) = self.data().await? {
            let content = self.decoder.decode(data)?;
            if !content.is_empty() {
                return Ok(Some(content));
            }
        }
        self.decoder.finish().map(|()| None)
    }

    /// The next bytes of the body as sent.
    async fn data(&mut self) -> Result<Option<Bytes>, Broken> {
        loop {
            let frame = match &mut self.idle {
                None => self.body.frame().await,
                Some((limit, timer)) => tokio::select! {
                    biased;
                    frame = self.body.frame() => frame,
                    () = timer.as_mut() => {
                        // The timer is reset only when it fires: a token costs no timer.
                        let deadline = self.last + *limit;
                        if Instant::now() < deadline {
                            timer.as_mut().reset(deadline);
                            continue;
                        }
                        let text = format!("silence for {} s", limit.as_secs_f64());
                        return Err(Broken { text, is_final: true });
                    }
                },
            };
            self.last = Instant::now();
            match frame {
                None => return Ok(None),
                Some(Err(error)) => return Err(Broken::new(cause(&error))),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) if data.is_empty() => {}
                    Ok(data) => return Ok(Some(data)),
                    Err(_trailers) => {}
                },
            }
        }
    }
}

/// Why a request has no answer.
struct Trouble {
    failure: Failure,
    again: Again,
}

/// Whether a request without an answer is retried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Again {
    Never,
    /// As often as configured.
    Perhaps,
    /// At once and on a new connection: the server had closed the old one, which is not the request's fault.
    AtOnce,
}

impl Trouble {
    fn new(message: impl Into<String>, again: Again) -> Self {
        Self { failure: Failure::Network(message.into()), again }
    }
}

enum Answered {
    Opened(Box<Opened>),
    Refused { refused: Refused, detail: String, text: String },
}

/// Why a request was not answered, and whether its connection was a reused one: a server may close those at any time.
type Unanswered = (BoxError, bool);

impl Client {
    /// A client for the configured endpoint. It does not connect yet and reads no system certificates, but it reads the
    /// files that the configuration names.
    ///
    /// # Errors
    /// Which part of the configuration cannot be used: certificates, the key file, the proxy.
    pub fn new(config: Rc<Config>) -> Result<Self, String> {
        let proxy = proxy(&config)?;
        let mut secrets = Secrets::of(&config);
        if let Some(proxy) = &proxy {
            proxy.hide(&mut secrets);
        }
        let secrets = Rc::new(secrets);
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(ACCEPT, HeaderValue::from_static("text/event-stream, application/json"));
        // A compressed stream arrives in lumps.
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        headers.insert(USER_AGENT, HeaderValue::from_static(concat!("openai-agent/", env!("CARGO_PKG_VERSION"))));
        let is_plain = config.endpoint.chat_url.scheme_str() != Some("https");
        if let Some(auth) = proxy.as_ref().and_then(|proxy| proxy.basic.as_ref()).filter(|_| is_plain) {
            headers.insert(PROXY_AUTHORIZATION, auth.clone());
        }
        let host = config.endpoint.chat_url.authority().and_then(|host| HeaderValue::from_str(host.as_str()).ok());
        headers.extend(host.map(|host| (HOST, host)));
        for name in config.endpoint.extra_headers.keys() {
            headers.remove(name);
        }
        for (name, value) in &config.endpoint.extra_headers {
            headers.append(name, value.clone());
        }
        let keyring = Keyring::new(&config, secrets.clone())?;
        let client =
            Self { secrets, keyring, proxy, dial: OnceCell::new(), headers, dialects: RefCell::default(), config };
        if client.config.endpoint.ca_file.is_some() {
            client.dial()?;
        }
        Ok(client)
    }

    /// The secrets to mask.
    pub fn secrets(&self) -> &Rc<Secrets> {
        &self.secrets
    }

    fn dial(&self) -> Result<&Rc<Dial>, String> {
        if let Some(dial) = self.dial.get() {
            return Ok(dial);
        }
        let dial = Dial::new(&self.config, self.proxy.clone())?;
        Ok(self.dial.get_or_init(|| Rc::new(dial)))
    }

    /// Posts a prompt and waits for the first bytes of the answer; retries as often as allowed and sensible. `body`
    /// writes the request in a dialect; `None` means that the answer is no longer wanted.
    ///
    /// # Errors
    /// Why there is no answer.
    pub async fn ask(&self, model: &Rc<str>, body: impl Fn(Dialect) -> Option<Vec<u8>>) -> Result<Opened, Failure> {
        let known = self.dialects.borrow().get(model).copied().unwrap_or_default();
        let (mut dialect, mut attempt, mut on_new_connection) = (known, 0, false);
        loop {
            let key = self.keyring.key().await.map_err(|problem| Failure::Key(self.secrets.mask(&problem)))?;
            let Some(bytes) = body(dialect) else { return Err(Failure::Network("nobody wants the answer".into())) };
            let (failure, refused, retries) = match self.post(bytes, &key, on_new_connection).await {
                Ok(Answered::Opened(opened)) => {
                    let mut dialects = self.dialects.borrow_mut();
                    if dialect != known && (dialects.len() < MOST_DIALECTS || dialects.contains_key(model)) {
                        dialects.insert(model.clone(), dialect);
                    }
                    return Ok(*opened);
                }
                Ok(Answered::Refused { refused, detail, text }) => {
                    let (status, refusal) = (refused.status, Refusal::read(&text));
                    if matches!(status, 400 | 422 | 500 | 501)
                        && let Some(lesson) = dialect.learn(&refusal, &self.config)
                    {
                        note!(Info, "The endpoint refuses a request of {model} (HTTP {status}): {lesson}.");
                        continue;
                    }
                    let refused = Refused { is_spent: refusal.is_spent(), ..refused };
                    let failure = match self.proxy.as_ref().filter(|_| self.is_forwarded()) {
                        Some(proxy) => Failure::Proxied { status, detail, proxy: proxy.name() },
                        None => Failure::Status { status, detail },
                    };
                    (failure, Some(refused), self.config.endpoint.max_retries)
                }
                Err(Trouble { again: Again::AtOnce, .. }) if !on_new_connection => {
                    note!(Debug, "The endpoint had closed the connection: the request is sent again on a new one.");
                    on_new_connection = true;
                    continue;
                }
                Err(Trouble { failure, again: Again::Never }) => (failure, None, 0),
                Err(Trouble { failure, .. }) => (failure, None, self.config.endpoint.max_retries),
            };
            let failure = failure.masked(&self.secrets);
            let wait = failure::decide(refused.as_ref(), attempt, retries, SystemTime::now(), dice());
            let Some(wait) = wait else { return Err(failure) };
            let text = failure.text(&self.config.endpoint.shown_url());
            note!(Info, "{}. Again in {} ms.", text.trim_end_matches('.'), wait.as_millis());
            sleep(wait).await;
            attempt += 1;
        }
    }

    /// Whether requests are forwarded by a proxy, which may answer them itself.
    fn is_forwarded(&self) -> bool {
        self.dial.get().is_some_and(|dial| dial.is_forwarded)
    }

    /// Sends a request to the endpoint, on a reused connection or on a new one.
    async fn send(
        &self,
        mut request: Request<Full<Bytes>>,
        url: &Uri,
        key: &str,
        on_new_connection: bool,
    ) -> Result<Response<Incoming>, Unanswered> {
        let dial = self.dial().map_err(|problem| (problem.into(), false))?;
        let target = url.path_and_query().map_or("/", |target| target.as_str());
        *request.uri_mut() = if dial.is_forwarded { url.clone() } else { target.parse().unwrap_or_default() };
        self.sign(request.headers_mut(), key);
        let kept = if on_new_connection { None } else { dial.kept() };
        let was_used = kept.is_some();
        let (mut sender, greeting) = match kept {
            Some(sender) => (sender, Greeting::default()),
            None => dial.connect().await.map_err(|error| (error, false))?,
        };
        let response = sender.send_request(request).await.map_err(|error| {
            let hindrance = greeting.hindrance().map(BoxError::from);
            (hindrance.unwrap_or_else(|| error.into()), was_used)
        })?;
        dial.keep(sender);
        Ok(response)
    }

    /// One prompt.
    async fn post(&self, body: Vec<u8>, key: &str, on_new_connection: bool) -> Result<Answered, Trouble> {
        let (began, length) = (Instant::now(), body.len());
        let mut request = Request::new(Full::new(Bytes::from(body)));
        *request.method_mut() = Method::POST;
        let sending = self.send(request, &self.config.endpoint.chat_url, key, on_new_connection);
        let limit = self.config.endpoint.idle_timeout;
        let response = match limit {
            None => sending.await,
            Some(limit) => timeout(limit, sending)
                .await
                .map_err(|_| Trouble::new(format!("no answer within {} s", limit.as_secs_f64()), Again::Never))?,
        };
        let response = response.map_err(|(error, was_used)| self.classify(&*error, was_used))?;
        let time = began.elapsed().as_millis();
        let content_type = self.secrets.mask(header(response.headers(), CONTENT_TYPE));
        let (status, id) = (response.status().as_u16(), request_id(response.headers()));
        let url = self.config.endpoint.shown_url();
        note!(Debug, "POST {url}, {length} bytes: HTTP {status} after {time} ms, {content_type:?}{id}.");
        let (head, body) = response.into_parts();
        if !head.status.is_success() {
            let text = self.secrets.mask(&read_body(body, &codings(&head.headers), ERROR_BODY).await);
            let detail = self.detail(status, &head.headers, &text);
            let refused = Refused { status, headers: head.headers, is_spent: false };
            return Ok(Answered::Refused { refused, detail, text });
        }
        let decoder = Decoder::new(&codings(&head.headers)).map_err(|kind| {
            let failure = Failure::NotACompletion(self.secrets.mask(&kind));
            Trouble { failure, again: Again::Never }
        })?;
        let idle = limit.map(|limit| (limit, Box::pin(sleep(limit))));
        let last = Instant::now();
        let mut opened = Opened { first: None, content_type, body, decoder, idle, last };
        opened.first = opened.next().await.map_err(|broken| {
            let again = if broken.is_final { Again::Never } else { Again::Perhaps };
            Trouble::new(broken.text, again)
        })?;
        match opened.first {
            Some(_) => Ok(Answered::Opened(Box::new(opened))),
            // Gateways answer like this while the model behind them starts or dies.
            None => Err(Trouble::new("the answer is empty", Again::Perhaps)),
        }
    }

    /// What an unsuccessful response says about the reason.
    fn detail(&self, status: u16, headers: &HeaderMap, text: &str) -> String {
        let location = self.secrets.mask(header(headers, LOCATION));
        if !(300..400).contains(&status) || location.is_empty() {
            return failure::of_text(text).map(|error| error.message).unwrap_or_default();
        }
        let (place, query) = location.split_at(location.find('?').unwrap_or(location.len()));
        let query = if query.is_empty() { "" } else { "?***" };
        format!("it redirects to {place}{query}; set OPENAI_BASE_URL accordingly")
    }

    /// Sets the headers of a request, including the key.
    fn sign(&self, headers: &mut HeaderMap, key: &str) {
        headers.clone_from(&self.headers);
        // Azure takes its own keys as api-key and Entra tokens, which are JWTs, in the usual way.
        let (name, value) = if self.config.endpoint.is_azure && !key.starts_with("eyJ") {
            (HeaderName::from_static("api-key"), key.to_owned())
        } else {
            (AUTHORIZATION, format!("Bearer {key}"))
        };
        if key.is_empty() || self.config.endpoint.extra_headers.contains_key(&name) {
            return;
        }
        // A key that a header cannot carry was refused when it was read.
        if let Ok(mut value) = HeaderValue::from_str(&value) {
            value.set_sensitive(true);
            headers.insert(name, value);
        }
    }

    /// Classifies a request that got no answer.
    fn classify(&self, error: &(dyn Error + Send + Sync + 'static), was_used: bool) -> Trouble {
        let mut message = cause(error);
        let mut again = if was_used { Again::AtOnce } else { Again::Perhaps };
        if error.downcast_ref::<Hindrance>().is_some_and(|hindrance| !hindrance.may_pass) {
            again = Again::Never;
        }
        // TLS errors, in the words of rustls.
        for (words, advice) in [
            ("invalid peer certificate", "; OPENAI_CA_FILE can name a certificate to trust"),
            ("received corrupt message", "; does the endpoint speak TLS?"),
            ("peer is incompatible", ""),
            ("NoApplicationProtocol", "; the server speaks HTTP/2 only, and this agent HTTP/1.1"),
        ] {
            if message.contains(words) {
                message.push_str(advice);
                again = Again::Never;
            }
        }
        Trouble::new(self.secrets.mask(&message), again)
    }

    /// The ids of the models that the endpoint lists.
    ///
    /// # Errors
    /// Why there is no list.
    pub async fn models(&self) -> Result<Vec<dialect::Model>, dialect::Unavailable> {
        let fetching = async {
            let key = self.keyring.key().await?;
            let response =
                self.send(Request::new(Full::default()), &self.config.endpoint.models_url, &key, false).await;
            let (head, body) = response.map_err(|(error, _)| cause(&*error))?.into_parts();
            let text = read_body(body, &codings(&head.headers), LIST_BODY).await;
            if head.status.is_success() {
                return dialect::read_models(&text);
            }
            let said = failure::of_text(&text).map(|error| format!(": {}", error.message));
            Err(format!("HTTP {}{}", head.status.as_u16(), said.unwrap_or_default()))
        };
        match timeout(SIDE_TIMEOUT, fetching).await {
            Ok(outcome) => outcome.map_err(|problem| (self.secrets.mask(&problem), Duration::ZERO)),
            // Its silence must not hold up every session.
            Err(_) => Err((format!("no answer within {} s", SIDE_TIMEOUT.as_secs()), dialect::REST)),
        }
    }
}

/// A header as text; empty if it is absent or not text.
fn header(headers: &HeaderMap, name: HeaderName) -> &str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

/// The content codings of a response.
fn codings(headers: &HeaderMap) -> String {
    let named: Vec<&str> = headers.get_all(CONTENT_ENCODING).iter().filter_map(|value| value.to_str().ok()).collect();
    named.join(",")
}

/// The server's id of the request, for the log.
fn request_id(headers: &HeaderMap) -> String {
    let found = REQUEST_IDS.split(' ').find_map(|name| Some((name, headers.get(name)?.to_str().ok()?)));
    found.map_or_else(String::new, |(name, id)| format!(", {name} {}", id.chars().take(100).collect::<String>()))
}

/// Uniformly distributed over 0 to 1.
fn dice() -> f64 {
    let [high, low, ..] = super::stdio::random();
    f64::from(u16::from_be_bytes([high, low])) / 65_536.0
}

/// The beginning of a body, as text; what fails or takes too long is missing.
async fn read_body(mut body: Incoming, codings: &str, limit: usize) -> String {
    let mut bytes = Vec::new();
    let reading = async {
        let mut decoder = Decoder::new(codings).ok()?;
        while let Some(Ok(frame)) = body.frame().await {
            let Ok(data) = frame.into_data() else { continue };
            let piece = decoder.decode(data).ok()?;
            bytes.extend_from_slice(&piece[..piece.len().min(limit - bytes.len())]);
            if bytes.len() == limit {
                return None;
            }
        }
        None::<()>
    };
    let _ = timeout(SIDE_TIMEOUT, reading).await;
    String::from_utf8_lossy(&bytes).into_owned()
}

/// An error and its sources, without repetition.
fn cause(error: &dyn Error) -> String {
    let mut said: Vec<String> = Vec::new();
    let mut next = Some(error);
    while let Some(error) = next {
        let words = error.to_string();
        if !said.iter().any(|before| before.contains(&words)) {
            said.retain(|before| !words.contains(before.as_str()));
            said.push(words);
        }
        next = error.source();
    }
    if said.is_empty() { error.to_string() } else { said.join(": ") }
}

/// Why there is no connection.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A connection to the endpoint.
pub type Sender = SendRequest<Full<Bytes>>;

/// Time limit for a connection, TLS included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long an idle connection is kept, and how many are kept.
const KEPT: Duration = Duration::from_secs(60);
const MOST_KEPT: usize = 1000;

/// Largest read buffer of a connection, in bytes: a stream that is not read costs little and blocks only its sender.
const BUFFER: usize = 64 << 10;

/// The proxy that the environment sets for the endpoint.
///
/// # Errors
/// Why it cannot be used.
pub fn proxy(config: &Config) -> Result<Option<Proxy>, String> {
    let host = host(&config.endpoint.chat_url);
    let address = host.parse::<std::net::IpAddr>();
    let is_here = host == "localhost" || address.is_ok_and(|address| address.is_loopback());
    if is_here {
        return Ok(None);
    }
    let Some(found) = Matcher::from_env().intercept(&config.endpoint.chat_url) else { return Ok(None) };
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
    /// The value it expects in every request that it sees.
    pub basic: Option<HeaderValue>,
}

impl Proxy {
    /// Its host and port.
    fn name(&self) -> String {
        self.uri.authority().map_or_else(String::new, |authority| {
            authority.as_str().rsplit_once('@').map_or(authority.as_str(), |(_, place)| place).to_owned()
        })
    }

    /// Adds its secrets.
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

/// The route to the configured endpoint, and its idle connections.
pub struct Dial {
    http: HttpConnector,
    proxy: Option<Proxy>,
    tls: Option<TlsConnector>,
    url: Uri,
    /// Whether requests carry the whole URL, since a proxy reads them.
    pub is_forwarded: bool,
    kept: RefCell<Vec<(Sender, Instant)>>,
    has_sweeper: Cell<bool>,
}

impl Dial {
    /// The route to the configured endpoint.
    ///
    /// # Errors
    /// Why the configured certificates cannot be used.
    pub fn new(config: &Config, proxy: Option<Proxy>) -> Result<Self, String> {
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_nodelay(true);
        http.set_keepalive(Some(Duration::from_secs(60)));
        http.set_connect_timeout(Some(CONNECT_TIMEOUT));
        let tls = client_config(config)?.map(|config| TlsConnector::from(Arc::new(config)));
        let is_forwarded = proxy.is_some() && tls.is_none();
        let (kept, has_sweeper) = (RefCell::default(), Cell::default());
        Ok(Self { http, proxy, tls, url: config.endpoint.chat_url.clone(), is_forwarded, kept, has_sweeper })
    }

    /// An idle connection that is still open.
    pub fn kept(&self) -> Option<Sender> {
        let mut kept = self.kept.borrow_mut();
        std::iter::from_fn(|| kept.pop()).map(|(sender, _)| sender).find(Sender::is_ready)
    }

    /// Keeps a connection for reuse once its answer has been read.
    pub fn keep(self: &Rc<Self>, mut sender: Sender) {
        let dial = self.clone();
        spawn_local(async move {
            if sender.ready().await.is_err() || dial.kept.borrow().len() >= MOST_KEPT {
                return;
            }
            dial.kept.borrow_mut().push((sender, Instant::now()));
            // One such task sweeps all idle connections.
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
    pub async fn connect(&self) -> Result<(Sender, Greeting), BoxError> {
        let late = || format!("no connection within {} s", CONNECT_TIMEOUT.as_secs());
        timeout(CONNECT_TIMEOUT, self.dial()).await.unwrap_or_else(|_| Err(late().into()))
    }

    async fn dial(&self) -> Result<(Sender, Greeting), BoxError> {
        let mut http = self.http.clone();
        let stream = match &self.proxy {
            None => http.call(self.url.clone()).await?.into_inner(),
            Some(proxy) => {
                let place = proxy.name();
                let unreached = |error| format!("the proxy {place} cannot be reached: {}", cause(&error));
                let stream = http.call(proxy.uri.clone()).await.map_err(unreached)?.into_inner();
                match &self.tls {
                    // The proxy needs the whole URL.
                    None => stream,
                    Some(_) => tunnel(stream, &place, proxy.basic.as_ref(), &self.url).await?,
                }
            }
        };
        match &self.tls {
            None => begin(stream).await,
            Some(tls) => {
                let name = ServerName::try_from(host(&self.url).to_owned())?;
                begin(tls.connect(name, stream).await?).await
            }
        }
    }
}

/// The host of a URL, an IPv6 address without its brackets.
fn host(url: &Uri) -> &str {
    url.host().unwrap_or_default().trim_matches(['[', ']'])
}

async fn begin(stream: impl AsyncRead + AsyncWrite + Unpin + 'static) -> Result<(Sender, Greeting), BoxError> {
    let (stream, greeting) = Watched::new(stream);
    let (sender, connection) = http1::Builder::new().max_buf_size(BUFFER).handshake(TokioIo::new(stream)).await?;
    // Its error reaches the sender.
    spawn_local(async move { drop(connection.await) });
    Ok((sender, greeting))
}

/// The TLS configuration for the endpoint, if it uses TLS.
fn client_config(config: &Config) -> Result<Option<ClientConfig>, String> {
    let unusable = |problem| format!("OPENAI_CA_FILE: {problem}");
    let own = match &config.endpoint.ca_file {
        Some(path) => trust::certificates(path).map_err(unusable)?,
        None => Vec::new(),
    };
    if config.endpoint.chat_url.scheme_str() != Some("https") {
        // A plain connection needs no system certificates.
        return Ok(None);
    }
    let unreadable = |error: &dyn std::fmt::Display| {
        note!(Info, "Some of the system's root certificates cannot be read: {error}");
    };
    let mut tls = if config.endpoint.tls_insecure {
        trust::anyone()?
    } else {
        trust::authorities(own, unreadable).map_err(unusable)?
    };
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Some(tls))
}
