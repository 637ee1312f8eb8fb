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

use super::coding::Decoder;
use super::complaint;
use super::config::{Auth, Config, MaxTokensField};
use super::dial::{self, Proxy, Timed, Uses};
use super::dialect::{Dialect, Limit, Refusal, Sent};
use super::errors::Failure;
use super::key::{Key, Keyring};
use super::log::note;
use super::models;
use super::options::{Parameter, Parameters};
use super::retry::{self, Cause};
use super::secrets::Secrets;
use super::usage::Cost;

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

/// Models of which something is remembered; clients name them.
const MOST_DIALECTS: usize = 1000;

/// Headers in which servers name a request, for their support and ours.
const REQUEST_IDS: [&str; 6] =
    ["x-request-id", "request-id", "apim-request-id", "x-amzn-requestid", "x-generation-id", "cf-ray"];

/// Where LiteLLM tells the cost of an answer, in US dollars.
const COST: HeaderName = HeaderName::from_static("x-litellm-response-cost");

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
    /// The header of the key, unless a configured one takes its place.
    auth: Option<HeaderName>,
    lanes: RefCell<Vec<Rc<Lane>>>,
    /// The models that want something otherwise than [`Client::first_dialect`].
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
    /// What a header says that the answer costs, which LiteLLM knows beforehand where it does not stream.
    pub cost: Option<Cost>,
    body: Incoming,
    /// The codings that the response names, until its first bytes have come.
    codings: Option<String>,
    decoder: Option<Box<Decoder>>,
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
            if let Some(decoder) = &mut self.decoder
                && let Some(bytes) = decoder.decoded()?
            {
                return Ok(Some(bytes));
            }
            let Some(data) = self.data().await? else {
                return match &mut self.decoder {
                    Some(decoder) => decoder.finish().map(|()| None),
                    None => Ok(None),
                };
            };
            if let Some(codings) = self.codings.take() {
                let mut decoder = Decoder::new(&codings)?;
                decoder.push(data);
                match decoder.is_plain() {
                    true => return decoder.decoded(),
                    false => self.decoder = Some(Box::new(decoder)),
                }
                continue;
            }
            match &mut self.decoder {
                None => return Ok(Some(data)),
                Some(decoder) => decoder.push(data),
            }
        }
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
    Opened(Opened),
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
        let auth = match config.auth {
            Auth::Bearer => Some(AUTHORIZATION),
            Auth::ApiKey => Some(HeaderName::from_static("api-key")),
            Auth::None => None,
        };
        let auth = auth.filter(|name| !config.extra_headers.contains_key(name));
        let keyring = Keyring::new(&config, secrets.clone());
        keyring.try_file()?;
        let client = Self {
            secrets,
            keyring,
            proxy,
            connector: OnceCell::new(),
            headers,
            auth,
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

    /// How a request of this model is written now.
    pub fn dialect(&self, model: &str) -> Dialect {
        self.dialects.borrow().get(model).copied().unwrap_or_else(|| self.first_dialect())
    }

    fn first_dialect(&self) -> Dialect {
        Dialect::new(match self.config.max_tokens_field {
            MaxTokensField::New => Limit::New,
            MaxTokensField::Old | MaxTokensField::Auto => Limit::Old,
        })
    }

    /// What of a request may be left out when the endpoint refuses it: what the agent itself has put there.
    fn sent(&self, model: &str, parameters: Parameters) -> Sent {
        let config = &self.config;
        let is_ours = |member: &str| !config.extra_body.says(model, member);
        Sent {
            usage: is_ours("stream_options"),
            limit: config.max_tokens.is_some() && config.max_tokens_field == MaxTokensField::Auto,
            parameters: Parameter::ALL
                .into_iter()
                .filter(|parameter| parameters.contains(*parameter) && is_ours(parameter.name()))
                .collect(),
            system: config.system_prompt.is_some(),
        }
    }

    /// Posts a prompt and waits for the first bytes of the answer; sends it again as often as that is allowed and
    /// promising. `body` writes the request in a dialect; nothing means that nobody wants the answer any more. It has
    /// these `parameters` in it.
    ///
    /// # Errors
    /// Why there is no answer.
    pub async fn ask(
        &self,
        model: &Rc<str>,
        parameters: Parameters,
        body: impl Fn(Dialect) -> Option<Vec<u8>>,
    ) -> Result<Opened, Failure> {
        let (known, sent) = (self.dialect(model), self.sent(model, parameters));
        let mut dialect = known;
        let (mut attempt, mut on_new_connection, mut may_renew) = (0, false, true);
        loop {
            let key = self.keyring.key().await.map_err(|problem| self.no_key(&problem))?;
            let Some(bytes) = body(dialect) else { return Err(Failure::Network("nobody wants the answer".into())) };
            let (failure, wait) = match self.post(bytes, &key, on_new_connection).await {
                Ok(Answered::Opened(opened)) => {
                    if dialect != known {
                        self.remember(model, dialect);
                    }
                    return Ok(opened);
                }
                Ok(Answered::Refused { status, headers, detail, text }) => {
                    if may_renew && is_stale(status, &text) {
                        may_renew = false;
                        if self.keyring.renew(&key).await.map_err(|problem| self.no_key(&problem))? {
                            continue;
                        }
                    }
                    let refusal = Refusal::read(&text);
                    if matches!(status, 400 | 422 | 500 | 501)
                        && let Some(lesson) = dialect.learn(&refusal, sent)
                    {
                        note!(Info, "The endpoint refuses a request of {model} (HTTP {status}): {lesson}.");
                        continue;
                    }
                    let cause = Cause::Status { status, headers: &headers, is_spent: retry::is_spent(&refusal) };
                    let wait = retry::decide(cause, attempt, self.config.max_retries, SystemTime::now(), dice());
                    (Failure::Status { status, detail }, wait)
                }
                Err(Trouble { again: Again::AtOnce, .. }) if !on_new_connection => {
                    note!(Debug, "The endpoint had closed the connection: the request is sent again on a new one.");
                    on_new_connection = true;
                    continue;
                }
                Err(Trouble { failure, again }) => {
                    let retries = if again == Again::Never { 0 } else { self.config.max_retries };
                    let wait = retry::decide(Cause::Connection, attempt, retries, SystemTime::now(), dice());
                    (failure, wait)
                }
            };
            let failure = failure.masked(&self.secrets);
            let Some(wait) = wait else { return Err(failure) };
            let text = failure.text(&self.config.shown_url());
            note!(Info, "{}. Again in {} ms.", text.trim_end_matches('.'), wait.as_millis());
            sleep(wait).await;
            attempt += 1;
        }
    }

    fn no_key(&self, problem: &str) -> Failure {
        Failure::Key(self.secrets.mask(problem))
    }

    /// The endpoint has taken a request of this model in this dialect.
    fn remember(&self, model: &Rc<str>, dialect: Dialect) {
        let mut dialects = self.dialects.borrow_mut();
        if dialects.len() < MOST_DIALECTS || dialects.contains_key(model) {
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
        let response = match self.config.response_timeout {
            None => sending.await,
            Some(limit) => match timeout(limit, sending).await {
                Ok(response) => response,
                Err(_) => {
                    let message = format!("no answer within {} s", limit.as_secs_f64());
                    return Err(Trouble::network(message, Again::Never));
                }
            },
        };
        let (head, body) = response.map_err(|error| self.trouble(&error))?.into_parts();
        if let Some(uses) = head.extensions.get::<Uses>() {
            uses.count();
        }
        let header = |name: HeaderName| head.headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
        let content_type = self.secrets.mask(header(CONTENT_TYPE).unwrap_or_default());
        note!(
            Debug,
            "Request {number}: HTTP {} after {} ms, {content_type:?}{}.",
            head.status.as_u16(),
            exchange.began.elapsed().as_millis(),
            request_id(&head.headers)
        );
        let codings = codings(&head.headers);
        if !head.status.is_success() {
            let text = self.secrets.mask(&read_body(body, &codings, ERROR_BODY).await);
            exchange.bytes = text.len() as u64;
            let mut detail = complaint::of_text(&text).map(|error| error.message).unwrap_or_default();
            if let (true, Some(location)) = (head.status.is_redirection(), header(LOCATION)) {
                let location = self.secrets.mask(location);
                let (place, query) = location.split_at(location.find('?').unwrap_or(location.len()));
                let query = if query.is_empty() { "" } else { "?***" };
                detail = format!("it redirects to {place}{query}; set OPENAI_BASE_URL accordingly");
            }
            return Ok(Answered::Refused { status: head.status.as_u16(), headers: head.headers, detail, text });
        }
        if let Err(kind) = Decoder::new(&codings) {
            let failure = Failure::NotACompletion(self.secrets.mask(&kind));
            return Err(Trouble { failure, again: Again::Never });
        }
        let idle = self.config.idle_timeout.map(|limit| (limit, Box::pin(sleep(limit))));
        let mut opened = Opened {
            first: None,
            content_type,
            cost: header(COST).and_then(|cost| Cost::of_dollars(cost.parse().ok()?)),
            body,
            codings: Some(codings),
            decoder: None,
            idle,
            last: Instant::now(),
            exchange,
            _place: place,
        };
        opened.first = opened.next().await.map_err(|message| {
            let again = if message.starts_with("silence") { Again::Never } else { Again::Perhaps };
            Trouble::network(message, again)
        })?;
        match opened.first {
            Some(_) => Ok(Answered::Opened(opened)),
            // Gateways answer so while the model behind them starts or dies.
            None => Err(Trouble::network("the answer is empty", Again::Perhaps)),
        }
    }

    /// Gives a request its place and its headers, the key among them.
    fn address(&self, request: &mut Request<Full<Bytes>>, url: &Uri, key: &Key) {
        *request.uri_mut() = url.clone();
        let headers = request.headers_mut();
        headers.clone_from(&self.headers);
        let Some(name) = self.auth.as_ref().filter(|_| !key.is_empty()) else { return };
        let value = if *name == AUTHORIZATION { format!("Bearer {key}") } else { key.to_string() };
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
            let (mut status, mut text) = self.list(&key).await?;
            if is_stale(status, &text) && self.keyring.renew(&key).await? {
                let key = self.keyring.key().await?;
                (status, text) = self.list(&key).await?;
            }
            match (200..300).contains(&status) {
                true => models::read(&text),
                false => {
                    let said = complaint::of_text(&text).map(|error| format!(": {}", error.message));
                    Err(format!("HTTP {status}{}", said.unwrap_or_default()))
                }
            }
        };
        match timeout(SIDE_TIMEOUT, fetching).await {
            Ok(outcome) => outcome.map_err(|problem| models::Lack::Told(self.secrets.mask(&problem))),
            Err(_) => Err(models::Lack::Silence(SIDE_TIMEOUT)),
        }
    }

    async fn list(&self, key: &Key) -> Result<(u16, String), String> {
        let mut request = Request::new(Full::default());
        self.address(&mut request, &self.config.models_url, key);
        let place = self.place(false)?;
        let response: Response<Incoming> = place.0.client.request(request).await.map_err(|error| cause(&error))?;
        let (head, body) = response.into_parts();
        if let Some(uses) = head.extensions.get::<Uses>() {
            uses.count();
        }
        let text = read_body(body, &codings(&head.headers), LIST_BODY).await;
        Ok((head.status.as_u16(), text))
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

/// Whether a refusal is about the key, and another one may help: some clouds say 403 of a token that has expired.
fn is_stale(status: u16, text: &str) -> bool {
    status == 401 || (status == 403 && text.to_ascii_lowercase().contains("expired"))
}

/// What a response names as its content codings.
fn codings(headers: &HeaderMap) -> String {
    let named: Vec<&str> = headers.get_all(CONTENT_ENCODING).iter().filter_map(|value| value.to_str().ok()).collect();
    named.join(",")
}

/// What the server calls a request, for the log.
fn request_id(headers: &HeaderMap) -> String {
    let found = REQUEST_IDS.iter().find_map(|name| Some((name, headers.get(*name)?.to_str().ok()?)));
    found.map_or_else(String::new, |(name, id)| format!(", {name} {}", id.chars().take(100).collect::<String>()))
}

/// Evenly spread over 0 to 1.
fn dice() -> f64 {
    let [high, low, ..] = super::random::random();
    f64::from(u16::from_be_bytes([high, low])) / 65_536.0
}

/// The beginning of a body, as text; what fails or takes too long is missing.
async fn read_body(mut body: Incoming, codings: &str, limit: usize) -> String {
    let mut bytes = Vec::new();
    let reading = async {
        let mut decoder = Decoder::new(codings).ok()?;
        while let Some(Ok(frame)) = body.frame().await {
            let Ok(data) = frame.into_data() else { continue };
            decoder.push(data);
            while let Some(piece) = decoder.decoded().ok()? {
                bytes.extend_from_slice(&piece[..piece.len().min(limit - bytes.len())]);
                if bytes.len() == limit {
                    return None;
                }
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
    match said.is_empty() {
        true => error.to_string(),
        false => said.join(": "),
    }
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
