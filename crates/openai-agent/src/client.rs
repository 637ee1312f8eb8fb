//! The HTTP client: one endpoint, many requests at once, connections used again.
//!
//! HTTP/1.1 on plain connections; over TLS HTTP/2 where the endpoint offers it. A server bounds the streams of one
//! HTTP/2 connection (100 is usual), and a client that waits for a free one would make sessions wait for each other:
//! so requests are spread over lanes of `LANE` requests, each with its own connections. Buffers and windows are
//! small, so that a stream that is not read costs little and stops only its own sender.
//!
//! The invariant: whatever this module says of an endpoint has gone through [`Secrets::mask`].

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::{
    ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, LOCATION, PROXY_AUTHORIZATION, USER_AGENT,
};
use http::{Extensions, HeaderMap, HeaderName, HeaderValue, Method, Request, Response, Uri};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy;
use hyper_util::rt::TokioTimer;
use tokio::time::{Instant, Sleep, sleep, timeout};

use super::answer::{Answer, Ending, Piece};
use super::coding::Decoder;
use super::config::Config;
use super::dial::{self, Proxy, Timed, Uses};
use super::dialect::{Dialect, Refusal, Sent};
use super::failure::Failure;
use super::failure::{self, Cause};
use super::key::{Key, Keyring};
use super::log::note;
use super::models;
use super::secrets::Secrets;

/// Requests of one lane at once.
const LANE: usize = 64;

/// Window of an HTTP/2 stream and largest read buffer of an HTTP/1.1 connection, in bytes.
const WINDOW: u32 = 64 << 10;

/// Bytes of an error's body that are read.
const ERROR_BODY: usize = 64 << 10;

/// Bytes of a list of models that are read.
const LIST_BODY: usize = 4 << 20;

/// How long an error's body or the list of models may take.
const SIDE_TIMEOUT: Duration = Duration::from_secs(5);

/// How many reads of one stream may pass before other streams get their turn, whatever is there to read.
const BURST: usize = 32;

/// Longer than anybody waits.
const FOREVER: Duration = Duration::from_secs(365 * 86_400);

/// Models of which something is remembered; clients name them.
const MOST_DIALECTS: usize = 1000;

/// Headers in which servers name a request, for their support and ours.
const REQUEST_IDS: &str = "x-request-id request-id apim-request-id x-amzn-requestid x-generation-id cf-ray";

type Pooled = legacy::Client<Timed, Full<Bytes>>;

/// A client of the configured endpoint.
pub struct Client {
    config: Rc<Config>,
    secrets: Rc<Secrets>,
    keyring: Keyring,
    proxy: Option<Proxy>,
    /// Made when it is needed: it reads the certificates of the system.
    connector: OnceCell<Timed>,
    headers: HeaderMap,
    lanes: RefCell<Vec<Rc<Lane>>>,
    /// The models that want something otherwise than is tried first.
    dialects: RefCell<HashMap<Rc<str>, Dialect>>,
    requests: Cell<u64>,
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
    decoder: Decoder,
    idle: Option<(Duration, Pin<Box<Sleep>>)>,
    last: Instant,
    exchange: Exchange,
    _place: Place,
}

/// One request and its answer, for the log: numbers, sizes and times, and nothing that was said.
struct Exchange {
    number: u64,
    began: Instant,
    bytes: u64,
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let (number, bytes, time) = (self.number, self.bytes, self.began.elapsed().as_millis());
        note!(Debug, "Request {number} is over after {time} ms; {bytes} bytes of its answer were read.");
    }
}

impl Opened {
    /// Reads the answer and calls `sink` with its pieces, and `forwarded` after those of a read. Gives how it ended, and
    /// whether the endpoint said that it was over before the body ended.
    ///
    /// # Errors
    /// What `forwarded` says.
    pub async fn read(
        &mut self,
        limit: usize,
        sink: &mut impl FnMut(Piece<'_>),
        forwarded: impl AsyncFn() -> Result<(), Failure>,
    ) -> Result<(Result<Ending, Failure>, bool), Failure> {
        let mut answer = Answer::new(limit);
        let (mut trouble, mut burst) = (None, 0);
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
            // Silence where the endpoint seems to have finished is the end, too.
            let read = match answer.grace() {
                None => self.next().await,
                Some(limit) => timeout(limit, self.next()).await.unwrap_or(Ok(None)),
            };
            next = read.unwrap_or_else(|message| {
                trouble = Some(message);
                None
            });
        }
        let is_over = answer.is_over() && trouble.is_none();
        if trouble.is_none() {
            answer.end(&mut *sink);
            forwarded().await?;
        }
        Ok((answer.finish(trouble, &self.content_type, sink), is_over))
    }

    /// The next bytes of the body; none at its proper end.
    ///
    /// # Errors
    /// What happened to the connection, for people.
    pub async fn next(&mut self) -> Result<Option<Bytes>, String> {
        while let Some(data) = self.data().await? {
            let content = self.decoder.decode(data)?;
            if !content.is_empty() {
                return Ok(Some(content));
            }
        }
        self.decoder.finish().map(|()| None)
    }

    /// The next bytes of the body as they are sent.
    async fn data(&mut self) -> Result<Option<Bytes>, String> {
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
                    Ok(data) => {
                        self.exchange.bytes += data.len() as u64;
                        return Ok(Some(data));
                    }
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

/// What may become of a request without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Again {
    Never,
    /// As often as configured.
    Perhaps,
    /// At once and on a new connection: the server had closed the old one, which is no fault of the request.
    AtOnce,
}

impl Trouble {
    fn network(message: impl Into<String>, again: Again) -> Self {
        Self { failure: Failure::Network(message.into()), again }
    }
}

enum Answered {
    Opened(Box<Opened>),
    Refused { status: u16, headers: HeaderMap, detail: String, text: String },
}

impl Client {
    /// A client for the configured endpoint. Nothing is connected yet, and no certificate of the system is read; files
    /// that the configuration names are.
    ///
    /// # Errors
    /// What of the configuration cannot be used: certificates, the file of the key, the proxy.
    pub fn new(config: Rc<Config>) -> Result<Self, String> {
        let proxy = dial::proxy(&config)?;
        let mut secrets = Secrets::of(&config);
        if let Some(proxy) = &proxy {
            proxy.hide(&mut secrets);
        }
        let secrets = Rc::new(secrets);
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(ACCEPT, HeaderValue::from_static("text/event-stream, application/json"));
        // A stream that somebody compresses comes in lumps.
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        headers.insert(USER_AGENT, HeaderValue::from_static(concat!("openai-agent/", env!("CARGO_PKG_VERSION"))));
        if let Some(auth) = proxy.as_ref().and_then(|proxy| proxy.header(&config)) {
            headers.insert(PROXY_AUTHORIZATION, auth.clone());
        }
        for name in config.extra_headers.keys() {
            headers.remove(name);
        }
        for (name, value) in &config.extra_headers {
            headers.append(name, value.clone());
        }
        let keyring = Keyring::new(&config, secrets.clone())?;
        let client = Self {
            secrets,
            keyring,
            proxy,
            connector: OnceCell::new(),
            headers,
            lanes: RefCell::default(),
            dialects: RefCell::default(),
            requests: Cell::new(0),
            config,
        };
        if client.config.ca_file.is_some() {
            client.connector()?;
        }
        Ok(client)
    }

    /// What must not be told.
    pub fn secrets(&self) -> &Rc<Secrets> {
        &self.secrets
    }

    fn connector(&self) -> Result<&Timed, String> {
        if let Some(connector) = self.connector.get() {
            return Ok(connector);
        }
        let connector = dial::connector(&self.config, self.proxy.as_ref())?;
        Ok(self.connector.get_or_init(|| connector))
    }

    /// What of a request may be left out when the endpoint refuses it: what the agent itself has put there.
    fn sent(&self) -> Sent {
        let config = &self.config;
        let is_ours = |member: &str| !config.extra_body.contains_key(member);
        Sent {
            usage: is_ours("stream_options"),
            limit: config.max_tokens.is_some(),
            temperature: config.temperature.is_some() && is_ours("temperature"),
            system: config.system_prompt.is_some(),
        }
    }

    /// Posts a prompt and waits for the first bytes of the answer; sends it again as often as that is allowed and
    /// promising. `body` writes the request in a dialect; nothing means that nobody wants the answer any more.
    ///
    /// # Errors
    /// Why there is no answer.
    pub async fn ask(&self, model: &Rc<str>, body: impl Fn(Dialect) -> Option<Vec<u8>>) -> Result<Opened, Failure> {
        let known = self.dialects.borrow().get(model).copied().unwrap_or_default();
        let (mut dialect, mut attempt, mut on_new_connection) = (known, 0, false);
        loop {
            let key = self.keyring.key().await.map_err(|problem| Failure::Key(self.secrets.mask(&problem)))?;
            let Some(bytes) = body(dialect) else { return Err(Failure::Network("nobody wants the answer".into())) };
            let (failure, cause, retries) = match self.post(bytes, &key, on_new_connection).await {
                Ok(Answered::Opened(opened)) => {
                    self.remember(model, known, dialect);
                    return Ok(*opened);
                }
                Ok(Answered::Refused { status, headers, detail, text }) => {
                    let refusal = Refusal::read(&text);
                    if matches!(status, 400 | 422 | 500 | 501)
                        && let Some(lesson) = dialect.learn(&refusal, self.sent())
                    {
                        note!(Info, "The endpoint refuses a request of {model} (HTTP {status}): {lesson}.");
                        continue;
                    }
                    let cause = Cause::Status { status, headers, is_spent: failure::is_spent(&refusal) };
                    (Failure::Status { status, detail }, cause, self.config.max_retries)
                }
                Err(Trouble { again: Again::AtOnce, .. }) if !on_new_connection => {
                    note!(Debug, "The endpoint had closed the connection: the request is sent again on a new one.");
                    on_new_connection = true;
                    continue;
                }
                Err(Trouble { failure, again: Again::Never }) => (failure, Cause::Connection, 0),
                Err(Trouble { failure, .. }) => (failure, Cause::Connection, self.config.max_retries),
            };
            let failure = failure.masked(&self.secrets);
            let wait = failure::decide(&cause, attempt, retries, SystemTime::now(), dice());
            let Some(wait) = wait else { return Err(failure) };
            let text = failure.text(&self.config.shown_url());
            note!(Info, "{}. Again in {} ms.", text.trim_end_matches('.'), wait.as_millis());
            sleep(wait).await;
            attempt += 1;
        }
    }

    /// The endpoint has taken a request of this model in this dialect.
    fn remember(&self, model: &Rc<str>, known: Dialect, dialect: Dialect) {
        let mut dialects = self.dialects.borrow_mut();
        if dialect != known && (dialects.len() < MOST_DIALECTS || dialects.contains_key(model)) {
            dialects.insert(model.clone(), dialect);
        }
    }

    /// One request.
    async fn post(&self, body: Vec<u8>, key: &Key, on_new_connection: bool) -> Result<Answered, Trouble> {
        let number = self.requests.get() + 1;
        self.requests.set(number);
        let place = self.place(on_new_connection).map_err(|problem| Trouble::network(problem, Again::Never))?;
        let mut exchange = Exchange { number, began: Instant::now(), bytes: 0 };
        note!(Debug, "Request {number}: POST {}, {} bytes.", self.config.shown_url(), body.len());
        let mut request = Request::new(Full::new(Bytes::from(body)));
        *request.method_mut() = Method::POST;
        self.address(&mut request, &self.config.chat_url, key);
        let sending = place.0.client.request(request);
        let limit = self.config.idle_timeout;
        let Ok(response) = timeout(limit.unwrap_or(FOREVER), sending).await else {
            let message = format!("no answer within {} s", limit.unwrap_or(FOREVER).as_secs_f64());
            return Err(Trouble::network(message, Again::Never));
        };
        let response = response.map_err(|error| self.trouble(&error))?;
        let time = exchange.began.elapsed().as_millis();
        let content_type = self.secrets.mask(header(response.headers(), CONTENT_TYPE));
        let (status, id) = (response.status().as_u16(), request_id(response.headers()));
        note!(Debug, "Request {number}: HTTP {status} after {time} ms, {content_type:?}{id}.");
        let (head, body) = count_use(response).into_parts();
        if !head.status.is_success() {
            let text = self.secrets.mask(&read_body(body, &codings(&head.headers), ERROR_BODY).await);
            exchange.bytes = text.len() as u64;
            let detail = self.detail(status, &head.headers, &text);
            return Ok(Answered::Refused { status, headers: head.headers, detail, text });
        }
        let decoder = Decoder::new(&codings(&head.headers)).map_err(|kind| {
            let failure = Failure::NotACompletion(self.secrets.mask(&kind));
            Trouble { failure, again: Again::Never }
        })?;
        let idle = limit.map(|limit| (limit, Box::pin(sleep(limit))));
        let last = Instant::now();
        let mut opened = Opened { first: None, content_type, body, decoder, idle, last, exchange, _place: place };
        opened.first = opened.next().await.map_err(|message| {
            let is_final = message.starts_with("silence") || message.ends_with("is given up");
            let again = if is_final { Again::Never } else { Again::Perhaps };
            Trouble::network(message, again)
        })?;
        match opened.first {
            Some(_) => Ok(Answered::Opened(Box::new(opened))),
            // Gateways answer so while the model behind them starts or dies.
            None => Err(Trouble::network("the answer is empty", Again::Perhaps)),
        }
    }

    /// What a response that is no success says of it.
    fn detail(&self, status: u16, headers: &HeaderMap, text: &str) -> String {
        let location = self.secrets.mask(header(headers, LOCATION));
        if !(300..400).contains(&status) || location.is_empty() {
            return failure::of_text(text).map(|error| error.message).unwrap_or_default();
        }
        let (place, query) = location.split_at(location.find('?').unwrap_or(location.len()));
        let query = if query.is_empty() { "" } else { "?***" };
        format!("it redirects to {place}{query}; set OPENAI_BASE_URL accordingly")
    }

    /// Gives a request its place and its headers, the key among them.
    fn address(&self, request: &mut Request<Full<Bytes>>, url: &Uri, key: &Key) {
        *request.uri_mut() = url.clone();
        let headers = request.headers_mut();
        headers.clone_from(&self.headers);
        // Azure takes its own keys as api-key and the tokens of Entra, which are JWTs, as everybody does.
        let (name, value) = if self.config.is_azure && !key.starts_with("eyJ") {
            (HeaderName::from_static("api-key"), key.to_string())
        } else {
            (AUTHORIZATION, format!("Bearer {key}"))
        };
        if key.is_empty() || self.config.extra_headers.contains_key(&name) {
            return;
        }
        // A key that no header can carry was refused when it was read.
        if let Ok(mut value) = HeaderValue::from_str(&value) {
            value.set_sensitive(true);
            headers.insert(name, value);
        }
    }

    /// What became of a request that got no answer.
    fn trouble(&self, error: &legacy::Error) -> Trouble {
        let mut message = cause(error);
        let mut again = Again::Perhaps;
        let mut extras = Extensions::new();
        if let Some(connected) = error.connect_info() {
            connected.get_extras(&mut extras);
        }
        if extras.get::<Uses>().is_some_and(Uses::any) {
            again = Again::AtOnce;
        }
        match tls_error(error) {
            Some(rustls::Error::InvalidCertificate(_)) => {
                message.push_str("; OPENAI_CA_FILE can name a certificate to trust");
                again = Again::Never;
            }
            Some(rustls::Error::InvalidMessage(_)) => {
                message.push_str("; does the endpoint speak TLS?");
                again = Again::Never;
            }
            Some(rustls::Error::PeerIncompatible(_)) => again = Again::Never,
            _ => {}
        }
        Trouble::network(self.secrets.mask(&message), again)
    }

    /// The ids of the models that the endpoint lists.
    ///
    /// # Errors
    /// Why there is no list.
    pub async fn models(&self) -> Result<Vec<models::Model>, models::Lack> {
        let fetching = async {
            let key = self.keyring.key().await?;
            let mut request = Request::new(Full::default());
            self.address(&mut request, &self.config.models_url, &key);
            let place = self.place(false)?;
            let response: Response<Incoming> = place.0.client.request(request).await.map_err(|error| cause(&error))?;
            let (head, body) = count_use(response).into_parts();
            let text = read_body(body, &codings(&head.headers), LIST_BODY).await;
            if head.status.is_success() {
                return models::read(&text);
            }
            let said = failure::of_text(&text).map(|error| format!(": {}", error.message));
            Err(format!("HTTP {}{}", head.status.as_u16(), said.unwrap_or_default()))
        };
        match timeout(SIDE_TIMEOUT, fetching).await {
            Ok(outcome) => outcome.map_err(|problem| (self.secrets.mask(&problem), Duration::ZERO)),
            // Its silence must not hold up every session.
            Err(_) => Err((format!("no answer within {} s", SIDE_TIMEOUT.as_secs()), models::REST)),
        }
    }

    /// A place in the first lane that has one, so that few requests share few connections; or in a lane of its own.
    fn place(&self, on_new_connection: bool) -> Result<Place, String> {
        let mut lanes = self.lanes.borrow_mut();
        let free = lanes.iter().position(|lane| lane.running.get() < LANE && !on_new_connection);
        let lane = match free {
            Some(index) => lanes[index].clone(),
            None => {
                let lane = Rc::new(Lane { client: self.pooled()?, running: Cell::new(0) });
                if !on_new_connection {
                    lanes.push(lane.clone());
                }
                lane
            }
        };
        lane.running.set(lane.running.get() + 1);
        Ok(Place(lane))
    }

    fn pooled(&self) -> Result<Pooled, String> {
        let connector = self.connector()?.clone();
        let mut builder = legacy::Client::builder(OnThisThread);
        builder
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(Duration::from_secs(60))
            .pool_max_idle_per_host(LANE)
            .http1_max_buf_size(WINDOW as usize)
            .http2_initial_stream_window_size(WINDOW)
            .http2_initial_connection_window_size(WINDOW * LANE as u32)
            .http2_keep_alive_interval(Duration::from_secs(30));
        Ok(builder.build(connector))
    }
}

/// The connection of a response has served.
fn count_use(response: Response<Incoming>) -> Response<Incoming> {
    if let Some(uses) = response.extensions().get::<Uses>() {
        uses.count();
    }
    response
}

/// A header as text; empty if it is none.
fn header(headers: &HeaderMap, name: HeaderName) -> &str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

/// What a response names as its content codings.
fn codings(headers: &HeaderMap) -> String {
    let named: Vec<&str> = headers.get_all(CONTENT_ENCODING).iter().filter_map(|value| value.to_str().ok()).collect();
    named.join(",")
}

/// What the server calls a request, for the log.
fn request_id(headers: &HeaderMap) -> String {
    let found = REQUEST_IDS.split(' ').find_map(|name| Some((name, headers.get(name)?.to_str().ok()?)));
    found.map_or_else(String::new, |(name, id)| format!(", {name} {}", id.chars().take(100).collect::<String>()))
}

/// Evenly spread over 0 to 1.
fn dice() -> f64 {
    let [high, low, ..] = super::log::random();
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
    if said.is_empty() { error.to_string() } else { said.join(": ") }
}

/// What TLS says of a connection, if it does.
fn tls_error<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a rustls::Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<rustls::Error>() {
            return Some(found);
        }
        // What an I/O error was made of is not what it calls its source.
        let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        next = match inner {
            Some(inner) => Some(inner),
            None => error.source(),
        };
    }
    None
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
