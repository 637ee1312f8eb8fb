//! The agent's configuration: environment variables only, read once at the start.
//!
//! Pure: the environment is a function from name to value. An empty value is an unset one. A value that cannot be
//! used is an error that names the variable, the value and what was expected; nothing falls back silently.

use std::path::PathBuf;
use std::time::Duration;

use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::uri::{Authority, PathAndQuery, Scheme, Uri};

use super::extra::ExtraBody;
use super::options::{Parameter, Parameters};

/// One documented variable: `--help`, the manual and the tests are made from [`VARIABLES`].
pub struct Variable {
    /// Name in the environment.
    pub name: &'static str,
    /// What holds when it is unset, for people.
    pub default: &'static str,
    /// What it does, in a sentence.
    pub help: &'static str,
}

const fn variable(name: &'static str, default: &'static str, help: &'static str) -> Variable {
    Variable { name, default, help }
}

/// Every variable that the agent reads, in the order of the manual.
pub const VARIABLES: &[Variable] = &[
    variable(
        "OPENAI_BASE_URL",
        "https://api.openai.com/v1",
        "Base URL of the Chat Completions endpoint; a query string is kept.",
    ),
    variable("OPENAI_API_KEY", "(empty)", "API key. Empty: no authentication header is sent."),
    variable("OPENAI_API_KEY_FILE", "(unset)", "File that holds the key instead; it is read again when it changes."),
    variable(
        "OPENAI_API_KEY_COMMAND",
        "(unset)",
        "Command for /bin/sh that prints the key instead; it is run again when the endpoint refuses the key (401).",
    ),
    variable("OPENAI_MODEL", "gpt-4o", "Model of a new session."),
    variable("OPENAI_SYSTEM_PROMPT", "(unset)", "System prompt put before every conversation."),
    variable("OPENAI_MAX_TOKENS", "(unset)", "Most tokens of one answer, a whole number from 1."),
    variable("OPENAI_TEMPERATURE", "(unset)", "Sampling temperature, a number from 0."),
    variable(
        "OPENAI_MAX_TOKENS_FIELD",
        "auto",
        "max_tokens or max_completion_tokens; auto sends max_tokens and changes when the endpoint asks for the other.",
    ),
    variable("OPENAI_API_VERSION", "(unset)", "Azure: sent as ?api-version=."),
    variable(
        "OPENAI_AUTH_HEADER",
        "auto",
        "bearer, api-key or none; auto is api-key for Azure (an API version or an Azure host), else bearer.",
    ),
    variable("OPENAI_EXTRA_HEADERS", "(unset)", "More request headers: a JSON object, or lines of `Name: value`."),
    variable(
        "OPENAI_EXTRA_BODY",
        "(unset)",
        "JSON object merged into every request (RFC 7396: null takes a member out).",
    ),
    variable(
        "OPENAI_MODEL_EXTRA_BODY",
        "(unset)",
        "The same for single models: a JSON object from a model, or a beginning like `gpt-5*`, to such an object.",
    ),
    variable("OPENAI_ORG_ID", "(unset)", "Sent as OpenAI-Organization."),
    variable("OPENAI_PROJECT_ID", "(unset)", "Sent as OpenAI-Project."),
    variable("OPENAI_MODELS", "(unset)", "Models to choose from, separated by commas; others are then refused."),
    variable(
        "OPENAI_FETCH_MODELS",
        "0",
        "1: the models to choose from are fetched from {base}/models, at the start and again when a client asks late.",
    ),
    variable(
        "OPENAI_CONTEXT_WINDOW",
        "(the model's)",
        "The model's context window in tokens, which usage_update tells: the oldest turns are left out of a request that \
         would not fit. Unset: as {base}/models, the model's family or a refusal says. 0: unknown, and no usage_update.",
    ),
    variable(
        "OPENAI_SESSION_OPTIONS",
        "all",
        "What clients may choose in a session beside the model: reasoning_effort, temperature, top_p, stop, seed, \
         separated by commas; all or none.",
    ),
    variable("OPENAI_IMAGE_INPUT", "0", "1: images are sent to the model, and the capability is advertised."),
    variable(
        "OPENAI_ERRORS",
        "chat",
        "chat: a failed turn is told as text and ends with end_turn; jsonrpc: it is a JSON-RPC error.",
    ),
    variable(
        "OPENAI_MAX_RETRIES",
        "2",
        "Retries of a request of which no byte was answered (408, 409, 429, 5xx, connection errors).",
    ),
    variable("OPENAI_CONNECT_TIMEOUT_SEC", "10", "Seconds to connect, TLS included; 0 is no limit."),
    variable("OPENAI_RESPONSE_TIMEOUT_SEC", "300", "Seconds until the endpoint begins to answer; 0 is no limit."),
    variable("OPENAI_IDLE_TIMEOUT_SEC", "300", "Seconds of silence within an answer; 0 is no limit."),
    variable(
        "OPENAI_HISTORY_DIR",
        "(unset)",
        "Directory that keeps sessions, one file each; session/load, resume and delete work then.",
    ),
    variable(
        "OPENAI_MAX_HISTORY_BYTES",
        "67108864",
        "Most bytes of one conversation; the oldest turns are left out beyond it.",
    ),
    variable(
        "OPENAI_MAX_MEMORY_BYTES",
        "268435456",
        "Most bytes of memory for all conversations of one process; turns of the longest unused ones go first.",
    ),
    variable(
        "OPENAI_MAX_LINE_BYTES",
        "33554432",
        "Longest line from the client and longest event from the endpoint, in bytes.",
    ),
    variable("OPENAI_MAX_SESSIONS", "10000", "Most open sessions of one process."),
    variable(
        "OPENAI_SESSION_IDLE_SEC",
        "604800",
        "Seconds after which a session that is not used ends (a week); 0 is never.",
    ),
    variable(
        "OPENAI_LIST_SESSIONS",
        "all",
        "What session/list shows: all of the directory, own (made or loaded by this process) or none.",
    ),
    variable(
        "OPENAI_USAGE_UPDATES",
        "auto",
        "auto, 1 or 0: whether a session is told its counts (usage_update). auto: unless its client leaves clientInfo \
         out of initialize, as clients do that are older than the update and may stumble over it.",
    ),
    variable(
        "OPENAI_CA_FILE",
        "(unset)",
        "PEM file with more certificates to trust, beside the system's and the bundled ones.",
    ),
    variable(
        "OPENAI_TLS_INSECURE",
        "0",
        "1: the endpoint's certificate is not checked; anybody could answer and get the key.",
    ),
    variable("OPENAI_LOG", "warn", "What goes to stderr: off, error, warn, info or debug."),
    variable(
        "HTTPS_PROXY, HTTP_PROXY, ALL_PROXY, NO_PROXY",
        "(unset)",
        "Proxies (http, https, socks5), as curl reads them; this machine itself is never asked for through one.",
    ),
    variable("SSL_CERT_FILE, SSL_CERT_DIR", "(unset)", "Take the place of the system's root certificates."),
];

/// How the key is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Auth {
    /// `Authorization: Bearer KEY`.
    Bearer,
    /// `api-key: KEY`, as Azure wants it.
    ApiKey,
    /// Not at all.
    None,
}

/// Which member limits the tokens of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaxTokensField {
    /// `max_tokens` until the endpoint asks for the other.
    Auto,
    /// `max_tokens`.
    Old,
    /// `max_completion_tokens`.
    New,
}

/// How a failed turn is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorStyle {
    /// As an `agent_message_chunk`, and the turn ends with `end_turn` (the RFD's way).
    Chat,
    /// As a JSON-RPC error of the prompt.
    JsonRpc,
}

/// Which sessions a client is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListScope {
    /// The open ones and all of the directory.
    All,
    /// Those that were made or loaded by this process.
    Own,
    /// None: there is no list.
    None,
}

/// How much is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Level {
    Off,
    Error,
    Warn,
    Info,
    Debug,
}

/// Everything that can be set.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Config {
    /// As it may be told: without query string.
    pub base_url: String,
    /// Where prompts are posted, query string included.
    pub chat_url: Uri,
    /// Where the models are listed, query string included.
    pub models_url: Uri,
    pub api_key: Secret,
    /// Where the key is read instead.
    pub api_key_file: Option<PathBuf>,
    /// What prints the key instead.
    pub api_key_command: Option<Secret>,
    pub auth: Auth,
    pub extra_headers: HeaderMap,
    pub extra_body: ExtraBody,
    pub model: String,
    /// The models offered, if they were listed.
    pub models: Option<Vec<String>>,
    pub fetch_models: bool,
    pub system_prompt: Option<String>,
    pub max_tokens: Option<u64>,
    pub max_tokens_field: MaxTokensField,
    pub temperature: Option<f64>,
    /// What clients may choose where the model takes it.
    pub session_options: Parameters,
    /// In tokens, if it is told; 0 is none.
    pub context_window: Option<u64>,
    pub image_input: bool,
    pub errors: ErrorStyle,
    pub max_retries: u32,
    pub connect_timeout: Option<Duration>,
    pub response_timeout: Option<Duration>,
    pub idle_timeout: Option<Duration>,
    pub history_dir: Option<PathBuf>,
    /// In bytes.
    pub max_history: usize,
    /// In bytes.
    pub max_memory: usize,
    /// In bytes.
    pub max_line: usize,
    pub max_sessions: usize,
    pub session_idle: Option<Duration>,
    pub list_sessions: ListScope,
    /// Whether sessions are told their counts; none if that depends on their clients.
    pub usage_updates: Option<bool>,
    pub ca_file: Option<PathBuf>,
    pub tls_insecure: bool,
    pub log: Level,
}

/// A value that is never printed.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(pub String);

impl std::fmt::Debug for Secret {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(if self.0.is_empty() { "(empty)" } else { "(hidden)" })
    }
}

/// A variable that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name}: {problem}")]
pub struct ConfigError {
    /// The variable.
    pub name: &'static str,
    /// What is wrong with its value, and what would be right.
    pub problem: String,
}

fn wrong(name: &'static str, problem: impl Into<String>) -> ConfigError {
    ConfigError { name, problem: problem.into() }
}

impl Config {
    /// Reads the configuration of this process.
    ///
    /// # Errors
    /// The first variable that cannot be used.
    pub fn from_process() -> Result<Self, ConfigError> {
        let mut not_text = None;
        let config = Self::from_env(&mut |name| match std::env::var(name) {
            Ok(value) => Some(value),
            Err(std::env::VarError::NotPresent) => None,
            Err(std::env::VarError::NotUnicode(_)) => {
                not_text.get_or_insert_with(|| name.to_owned());
                None
            }
        })?;
        match not_text.and_then(|name| VARIABLES.iter().find(|variable| variable.name == name)) {
            Some(variable) => Err(wrong(variable.name, "is not UTF-8 text")),
            None => Ok(config),
        }
    }

    /// Reads the configuration from an environment.
    ///
    /// # Errors
    /// The first variable that cannot be used.
    pub fn from_env(env: &mut dyn FnMut(&str) -> Option<String>) -> Result<Self, ConfigError> {
        let mut text = |name: &str| env(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty());

        let base_url = text("OPENAI_BASE_URL").unwrap_or_else(|| "https://api.openai.com/v1".to_owned());
        let api_version = text("OPENAI_API_VERSION");
        let chat_url = endpoint_url(&base_url, "/chat/completions", api_version.as_deref())?;
        let models_url = endpoint_url(&base_url, "/models", api_version.as_deref())?;

        let auth = match text("OPENAI_AUTH_HEADER").as_deref() {
            None | Some("auto") if api_version.is_some() || is_azure(chat_url.host()) => Auth::ApiKey,
            None | Some("auto" | "bearer") => Auth::Bearer,
            Some("api-key") => Auth::ApiKey,
            Some("none") => Auth::None,
            Some(other) => {
                // Whoever takes it for the header itself has put a key there.
                let shown = if other.len() <= 10 { format!("{other:?}") } else { "its value".to_owned() };
                let problem = format!("{shown} is not one of auto, bearer, api-key, none");
                return Err(wrong("OPENAI_AUTH_HEADER", problem));
            }
        };
        let mut extra_headers = match text("OPENAI_EXTRA_HEADERS") {
            Some(value) => parse_headers(&value)?,
            None => HeaderMap::new(),
        };
        for (name, header) in [("OPENAI_ORG_ID", "openai-organization"), ("OPENAI_PROJECT_ID", "openai-project")] {
            if let Some(value) = text(name) {
                let value = HeaderValue::from_str(&value)
                    .map_err(|_| wrong(static_name(name), "has characters that a header cannot carry"))?;
                extra_headers.insert(HeaderName::from_static(header), value);
            }
        }
        let api_key = Secret(text("OPENAI_API_KEY").unwrap_or_default());
        if HeaderValue::from_str(&api_key.0).is_err() {
            return Err(wrong("OPENAI_API_KEY", "has characters that a header cannot carry, a line break perhaps"));
        }
        let api_key_file = text("OPENAI_API_KEY_FILE").map(PathBuf::from);
        let api_key_command = text("OPENAI_API_KEY_COMMAND").map(Secret);
        for (name, is_set, has_other) in [
            ("OPENAI_API_KEY_FILE", api_key_file.is_some(), !api_key.0.is_empty()),
            ("OPENAI_API_KEY_COMMAND", api_key_command.is_some(), api_key_file.is_some() || !api_key.0.is_empty()),
        ] {
            if is_set && has_other {
                let problem = "is set, and so is another one of OPENAI_API_KEY, OPENAI_API_KEY_FILE and \
                               OPENAI_API_KEY_COMMAND; set one of them";
                return Err(wrong(name, problem));
            }
        }
        let extra_body =
            ExtraBody::read(text("OPENAI_EXTRA_BODY").as_deref(), text("OPENAI_MODEL_EXTRA_BODY").as_deref())
                .map_err(|(name, problem)| wrong(name, problem))?;
        let models = text("OPENAI_MODELS").map(|list| {
            let names = list.split(',').map(str::trim).filter(|name| !name.is_empty());
            names.map(str::to_owned).collect::<Vec<_>>()
        });
        let max_tokens_field = match text("OPENAI_MAX_TOKENS_FIELD").as_deref() {
            None | Some("auto") => MaxTokensField::Auto,
            Some("max_tokens") => MaxTokensField::Old,
            Some("max_completion_tokens") => MaxTokensField::New,
            Some(other) => {
                let problem = format!("{other:?} is not one of auto, max_tokens, max_completion_tokens");
                return Err(wrong("OPENAI_MAX_TOKENS_FIELD", problem));
            }
        };
        let errors = match text("OPENAI_ERRORS").as_deref() {
            None | Some("chat") => ErrorStyle::Chat,
            Some("jsonrpc") => ErrorStyle::JsonRpc,
            Some(other) => return Err(wrong("OPENAI_ERRORS", format!("{other:?} is not one of chat, jsonrpc"))),
        };
        let list_sessions = match text("OPENAI_LIST_SESSIONS").as_deref() {
            None | Some("all") => ListScope::All,
            Some("own") => ListScope::Own,
            Some("none") => ListScope::None,
            Some(other) => {
                return Err(wrong("OPENAI_LIST_SESSIONS", format!("{other:?} is not one of all, own, none")));
            }
        };
        let usage_updates = match text("OPENAI_USAGE_UPDATES").as_deref() {
            None | Some("auto") => None,
            Some("1") => Some(true),
            Some("0") => Some(false),
            Some(other) => return Err(wrong("OPENAI_USAGE_UPDATES", format!("{other:?} is not one of auto, 1, 0"))),
        };
        let log = match text("OPENAI_LOG").as_deref() {
            None | Some("warn") => Level::Warn,
            Some("off") => Level::Off,
            Some("error") => Level::Error,
            Some("info") => Level::Info,
            Some("debug") => Level::Debug,
            Some(other) => {
                return Err(wrong("OPENAI_LOG", format!("{other:?} is not one of off, error, warn, info, debug")));
            }
        };

        let max_tokens = number("OPENAI_MAX_TOKENS", text("OPENAI_MAX_TOKENS"), 1)?;
        let temperature = match text("OPENAI_TEMPERATURE") {
            None => None,
            Some(value) => match value.parse::<f64>() {
                Ok(number) if number.is_finite() && number >= 0.0 => Some(number),
                _ => return Err(wrong("OPENAI_TEMPERATURE", format!("{value:?} is not a number from 0"))),
            },
        };
        let session_options = match text("OPENAI_SESSION_OPTIONS").as_deref() {
            None | Some("all") => Parameter::ALL.into_iter().collect(),
            Some("none") => Parameters::default(),
            Some(list) => list
                .split(',')
                .map(str::trim)
                .map(|name| {
                    Parameter::named(name).ok_or_else(|| {
                        let known = Parameter::ALL.map(Parameter::name).join(", ");
                        wrong("OPENAI_SESSION_OPTIONS", format!("{name:?} is not one of {known}, all, none"))
                    })
                })
                .collect::<Result<_, _>>()?,
        };
        let max_history = number("OPENAI_MAX_HISTORY_BYTES", text("OPENAI_MAX_HISTORY_BYTES"), 1024)?;
        let max_memory = number("OPENAI_MAX_MEMORY_BYTES", text("OPENAI_MAX_MEMORY_BYTES"), 1024)?;
        let max_line = number("OPENAI_MAX_LINE_BYTES", text("OPENAI_MAX_LINE_BYTES"), 1024)?;
        let max_sessions = number("OPENAI_MAX_SESSIONS", text("OPENAI_MAX_SESSIONS"), 1)?;
        let max_retries = number("OPENAI_MAX_RETRIES", text("OPENAI_MAX_RETRIES"), 0)?.unwrap_or(2);

        Ok(Self {
            chat_url,
            models_url,
            api_key,
            api_key_file,
            api_key_command,
            auth,
            extra_headers,
            extra_body,
            model: text("OPENAI_MODEL").unwrap_or_else(|| "gpt-4o".to_owned()),
            models: models.filter(|list| !list.is_empty()),
            fetch_models: switch("OPENAI_FETCH_MODELS", text("OPENAI_FETCH_MODELS"))?,
            max_tokens,
            max_tokens_field,
            temperature,
            session_options,
            context_window: number("OPENAI_CONTEXT_WINDOW", text("OPENAI_CONTEXT_WINDOW"), 0)?,
            image_input: switch("OPENAI_IMAGE_INPUT", text("OPENAI_IMAGE_INPUT"))?,
            errors,
            max_retries: u32::try_from(max_retries)
                .ok()
                .filter(|retries| *retries <= 100)
                .ok_or_else(|| wrong("OPENAI_MAX_RETRIES", format!("{max_retries} is more than 100")))?,
            connect_timeout: seconds("OPENAI_CONNECT_TIMEOUT_SEC", text("OPENAI_CONNECT_TIMEOUT_SEC"), 10)?,
            response_timeout: seconds("OPENAI_RESPONSE_TIMEOUT_SEC", text("OPENAI_RESPONSE_TIMEOUT_SEC"), 300)?,
            idle_timeout: seconds("OPENAI_IDLE_TIMEOUT_SEC", text("OPENAI_IDLE_TIMEOUT_SEC"), 300)?,
            history_dir: text("OPENAI_HISTORY_DIR").map(PathBuf::from),
            max_history: usize::try_from(max_history.unwrap_or(64 << 20)).unwrap_or(usize::MAX),
            max_memory: usize::try_from(max_memory.unwrap_or(256 << 20)).unwrap_or(usize::MAX),
            max_line: usize::try_from(max_line.unwrap_or(32 << 20)).unwrap_or(usize::MAX),
            max_sessions: usize::try_from(max_sessions.unwrap_or(10_000)).unwrap_or(usize::MAX),
            session_idle: seconds("OPENAI_SESSION_IDLE_SEC", text("OPENAI_SESSION_IDLE_SEC"), 7 * 86_400)?,
            list_sessions,
            usage_updates,
            ca_file: text("OPENAI_CA_FILE").map(PathBuf::from),
            tls_insecure: switch("OPENAI_TLS_INSECURE", text("OPENAI_TLS_INSECURE"))?,
            log,
            base_url: tellable(&base_url),
            // The one value whose surrounding space may matter to somebody: it is passed as it is.
            system_prompt: env("OPENAI_SYSTEM_PROMPT").filter(|prompt| !prompt.is_empty()),
        })
    }

    /// Whether requests carry a key, or should.
    pub fn has_key(&self) -> bool {
        !self.api_key.0.is_empty() || self.api_key_file.is_some() || self.api_key_command.is_some()
    }

    /// The models that may be used, if `model` is none of them. A list in the configuration is the operator's word;
    /// without one any name goes.
    pub fn refuses_model(&self, model: &str) -> Option<&[String]> {
        let listed = self.models.as_deref()?;
        (model != self.model && !listed.iter().any(|known| known == model)).then_some(listed)
    }

    /// The URL that people are told in errors: without query string, where some endpoints keep their keys.
    pub fn shown_url(&self) -> String {
        shown(&self.chat_url)
    }
}

/// A URL without its query string.
pub fn shown(url: &Uri) -> String {
    let text = url.to_string();
    text.split('?').next().unwrap_or_default().to_owned()
}

fn static_name(name: &str) -> &'static str {
    VARIABLES.iter().map(|variable| variable.name).find(|known| *known == name).unwrap_or("environment")
}

fn number(name: &'static str, value: Option<String>, least: u64) -> Result<Option<u64>, ConfigError> {
    let Some(value) = value else { return Ok(None) };
    match value.parse::<u64>() {
        Ok(number) if number >= least => Ok(Some(number)),
        _ => Err(wrong(name, format!("{value:?} is not a whole number from {least}"))),
    }
}

fn seconds(name: &'static str, value: Option<String>, default: u64) -> Result<Option<Duration>, ConfigError> {
    let Some(value) = value else { return Ok(Some(Duration::from_secs(default))) };
    match value.parse::<f64>().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()) {
        Some(Duration::ZERO) => Ok(None),
        Some(duration) if duration <= Duration::from_secs(365 * 86_400) => Ok(Some(duration)),
        _ => Err(wrong(name, format!("{value:?} is not a number of seconds from 0"))),
    }
}

fn switch(name: &'static str, value: Option<String>) -> Result<bool, ConfigError> {
    match value.as_deref() {
        None | Some("0" | "false" | "no" | "off") => Ok(false),
        Some("1" | "true" | "yes" | "on") => Ok(true),
        Some(other) => Err(wrong(name, format!("{other:?} is neither 1 nor 0"))),
    }
}

fn is_azure(host: Option<&str>) -> bool {
    let host = host.unwrap_or_default().to_ascii_lowercase();
    [".openai.azure.com", ".cognitiveservices.azure.com", ".services.ai.azure.com", ".openai.azure.us"]
        .iter()
        .any(|suffix| host.ends_with(suffix))
}

/// `base` with `path` before its query string, and the API version in it.
fn endpoint_url(base: &str, path: &str, api_version: Option<&str>) -> Result<Uri, ConfigError> {
    let name = "OPENAI_BASE_URL";
    let shown = tellable(base);
    let uri: Uri = base.parse().map_err(|error| wrong(name, format!("{shown:?} is not a URL: {error}")))?;
    let scheme = match uri.scheme_str() {
        Some("http") => Scheme::HTTP,
        Some("https") => Scheme::HTTPS,
        _ => return Err(wrong(name, format!("{shown:?} does not begin with http:// or https://"))),
    };
    let authority: Authority = match uri.authority() {
        Some(authority) if authority.as_str().contains('@') => {
            return Err(wrong(name, "has credentials in it; put the key into OPENAI_API_KEY or OPENAI_EXTRA_HEADERS"));
        }
        Some(authority) if !has_port(authority) => {
            return Err(wrong(name, format!("the port of {shown:?} is not a number from 1 to 65535")));
        }
        Some(authority) if !authority.host().is_empty() => authority.clone(),
        _ => return Err(wrong(name, format!("{shown:?} names no host"))),
    };
    // Some people copy the whole address of the method: it is taken for what it is.
    let root = uri.path().trim_end_matches('/');
    let root = root.strip_suffix("/chat/completions").unwrap_or(root);
    let mut query = uri.query().unwrap_or_default().to_owned();
    if let Some(version) = api_version {
        let has_one = query.split('&').any(|pair| pair.starts_with("api-version="));
        if !has_one {
            let separator = if query.is_empty() { "" } else { "&" };
            query.push_str(&format!("{separator}api-version={version}"));
        }
    }
    let target = if query.is_empty() { format!("{root}{path}") } else { format!("{root}{path}?{query}") };
    let target: PathAndQuery = target.parse().map_err(|_| {
        wrong("OPENAI_API_VERSION", format!("{:?} cannot stand in a URL", api_version.unwrap_or(&shown)))
    })?;
    Uri::builder()
        .scheme(scheme)
        .authority(authority)
        .path_and_query(target)
        .build()
        .map_err(|error| wrong(name, format!("{shown:?} is not a URL: {error}")))
}

/// Whether the port of a URL exists; none is the scheme's. Libraries take one beyond 65535 for none.
pub fn has_port(authority: &Authority) -> bool {
    let port = authority.as_str().rsplit_once(']').map_or(authority.as_str(), |(_, after)| after);
    match port.rsplit_once(':') {
        None => true,
        Some((_, port)) => {
            port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|port| port > 0)
        }
    }
}

/// A URL, or what somebody takes for one, without query string and credentials.
fn tellable(url: &str) -> String {
    let url = url.split(['?', '#']).next().unwrap_or_default();
    let (scheme, rest) = url.split_at(url.find("://").map_or(0, |at| at + 3));
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    match authority.rsplit_once('@') {
        Some((_, host)) => format!("{scheme}***@{host}{path}"),
        None => url.to_owned(),
    }
}

fn parse_headers(value: &str) -> Result<HeaderMap, ConfigError> {
    let name = "OPENAI_EXTRA_HEADERS";
    // What is wrong is not quoted: it may well be a key.
    let pairs: Vec<(String, String)> = if value.starts_with('{') {
        let members = serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(value).map_err(|error| {
            wrong(name, format!("is not a JSON object of strings: line {}, column {}", error.line(), error.column()))
        })?;
        let strings = members.into_iter().map(|(key, value)| match value {
            serde_json::Value::String(value) => Ok((key, value)),
            _ => Err(wrong(name, format!("the value of {key:?} is not a string"))),
        });
        strings.collect::<Result<_, _>>()?
    } else {
        let lines = value.lines().map(str::trim).filter(|line| !line.is_empty());
        lines
            .map(|line| match line.split_once(':') {
                Some((key, value)) => Ok((key.trim().to_owned(), value.trim().to_owned())),
                None => Err(wrong(name, "has a line without a colon; one `Name: value` a line, or a JSON object")),
            })
            .collect::<Result<_, _>>()?
    };
    let mut headers = HeaderMap::new();
    for (index, (key, value)) in pairs.into_iter().enumerate() {
        let key_name = HeaderName::from_bytes(key.as_bytes())
            .map_err(|_| wrong(name, format!("header {} of it has a name that no header can have", index + 1)))?;
        let mut value = HeaderValue::from_str(&value)
            .map_err(|_| wrong(name, format!("the value of {key:?} cannot be a header")))?;
        // It may well be a key: neither logs nor compression tables get it.
        value.set_sensitive(true);
        headers.append(key_name, value);
    }
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(pairs: &[(&str, &str)]) -> Result<Config, ConfigError> {
        Config::from_env(&mut |name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn the_defaults_are_the_rfds() {
        let config = read(&[]).unwrap();
        assert_eq!(config.chat_url, "https://api.openai.com/v1/chat/completions");
        assert_eq!(config.model, "gpt-4o");
        assert_eq!((config.api_key.0.as_str(), config.auth), ("", Auth::Bearer));
        assert!(config.system_prompt.is_none() && config.max_tokens.is_none() && config.temperature.is_none());
    }

    #[test]
    fn an_empty_variable_is_an_unset_one() {
        let config = read(&[("OPENAI_BASE_URL", ""), ("OPENAI_MODEL", " "), ("OPENAI_MAX_TOKENS", "")]).unwrap();
        assert_eq!((config.model.as_str(), config.max_tokens), ("gpt-4o", None));
    }

    #[test]
    fn azure_keeps_the_query_and_takes_its_own_header() {
        let config = read(&[
            ("OPENAI_BASE_URL", "https://x.openai.azure.com/openai/deployments/d/?tier=1"),
            ("OPENAI_API_VERSION", "2024-10-21"),
        ])
        .unwrap();
        assert_eq!(
            config.chat_url,
            "https://x.openai.azure.com/openai/deployments/d/chat/completions?tier=1&api-version=2024-10-21"
        );
        assert_eq!(config.auth, Auth::ApiKey);
        assert_eq!(config.shown_url(), "https://x.openai.azure.com/openai/deployments/d/chat/completions");
        let forced = read(&[("OPENAI_BASE_URL", "http://localhost:1/v1"), ("OPENAI_AUTH_HEADER", "api-key")]).unwrap();
        assert_eq!(forced.auth, Auth::ApiKey);
    }

    #[test]
    fn an_api_version_in_the_url_wins() {
        let config = read(&[("OPENAI_BASE_URL", "http://h/v1?api-version=1"), ("OPENAI_API_VERSION", "2")]).unwrap();
        assert_eq!(config.chat_url, "http://h/v1/chat/completions?api-version=1");
    }

    #[test]
    fn the_address_of_the_method_itself_is_understood() {
        let config = read(&[("OPENAI_BASE_URL", "http://h/v1/chat/completions")]).unwrap();
        assert_eq!(config.chat_url, "http://h/v1/chat/completions");
        assert_eq!(config.models_url, "http://h/v1/models");
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        for (name, value) in [
            ("OPENAI_MAX_TOKENS", "many"),
            ("OPENAI_MAX_TOKENS", "0"),
            ("OPENAI_MAX_TOKENS", "1.5"),
            ("OPENAI_TEMPERATURE", "warm"),
            ("OPENAI_TEMPERATURE", "NaN"),
            ("OPENAI_TEMPERATURE", "-1"),
            ("OPENAI_BASE_URL", "api.openai.com/v1"),
            ("OPENAI_BASE_URL", "ftp://h"),
            ("OPENAI_BASE_URL", "http://user:pass@h/v1"),
            ("OPENAI_AUTH_HEADER", "basic"),
            ("OPENAI_ERRORS", "loud"),
            ("OPENAI_IMAGE_INPUT", "maybe"),
            ("OPENAI_EXTRA_HEADERS", "no colon"),
            ("OPENAI_EXTRA_HEADERS", "{\"a\":1}"),
            ("OPENAI_MAX_RETRIES", "101"),
            ("OPENAI_CONNECT_TIMEOUT_SEC", "-1"),
            ("OPENAI_IDLE_TIMEOUT_SEC", "inf"),
            ("OPENAI_LOG", "all"),
            ("OPENAI_LIST_SESSIONS", "mine"),
            ("OPENAI_USAGE_UPDATES", "yes"),
            ("OPENAI_SESSION_IDLE_SEC", "a week"),
            ("OPENAI_MAX_MEMORY_BYTES", "1023"),
            ("OPENAI_API_KEY", "a\nb"),
            ("OPENAI_EXTRA_BODY", "[]"),
            ("OPENAI_MODEL_EXTRA_BODY", "{\"m\":1}"),
            ("OPENAI_TLS_INSECURE", "perhaps"),
            ("OPENAI_BASE_URL", "http://h:65536/v1"),
            ("OPENAI_BASE_URL", "http://h:0/v1"),
            ("OPENAI_BASE_URL", "http://h:/v1"),
            ("OPENAI_BASE_URL", "http://h:+1/v1"),
            ("OPENAI_BASE_URL", "https://[::1]:65536/v1"),
        ] {
            let error = read(&[(name, value)]).expect_err(value);
            assert_eq!(error.name, name, "{error}");
        }
    }

    #[test]
    fn every_port_that_exists_can_be_used() {
        for url in ["http://h:1/v1", "http://h:65535/v1", "http://[::1]:8080/v1", "http://[::1]/v1", "http://h/v1"] {
            assert!(read(&[("OPENAI_BASE_URL", url)]).is_ok(), "{url}");
        }
    }

    #[test]
    fn the_key_comes_from_one_place() {
        let (file, command) = (("OPENAI_API_KEY_FILE", "/f"), ("OPENAI_API_KEY_COMMAND", "print-key"));
        assert!(read(&[file]).unwrap().has_key() && read(&[command]).unwrap().has_key());
        assert_eq!(read(&[("OPENAI_API_KEY", "k"), file]).unwrap_err().name, "OPENAI_API_KEY_FILE");
        for other in [file, ("OPENAI_API_KEY", "k")] {
            assert_eq!(read(&[other, command]).unwrap_err().name, "OPENAI_API_KEY_COMMAND");
        }
        assert!(read(&[("OPENAI_API_KEY", ""), file]).is_ok());
    }

    #[test]
    fn headers_come_as_lines_or_as_json() {
        for text in ["X-A: 1\nx-b: two: three", "{\"X-A\":\"1\",\"x-b\":\"two: three\"}"] {
            let config = read(&[("OPENAI_EXTRA_HEADERS", text)]).unwrap();
            assert_eq!(config.extra_headers["x-a"], "1");
            assert_eq!(config.extra_headers["x-b"], "two: three");
        }
    }

    #[test]
    fn a_key_is_never_printed() {
        let config = read(&[("OPENAI_API_KEY", "sk-secret"), ("OPENAI_EXTRA_HEADERS", "X-Key: sk-other")]).unwrap();
        let shown = format!("{config:?}");
        assert!(!shown.contains("sk-secret") && !shown.contains("sk-other"), "{shown}");
    }

    proptest! {
        #[test]
        fn numbers_come_back_as_they_were_written(tokens in 1u64.., temperature in 0f64..1e9, seconds in 1u32..1_000_000) {
            let config = read(&[
                ("OPENAI_MAX_TOKENS", &tokens.to_string()),
                ("OPENAI_TEMPERATURE", &temperature.to_string()),
                ("OPENAI_IDLE_TIMEOUT_SEC", &seconds.to_string()),
            ]).unwrap();
            prop_assert_eq!(config.max_tokens, Some(tokens));
            prop_assert_eq!(config.temperature, Some(temperature));
            prop_assert_eq!(config.idle_timeout, Some(Duration::from_secs(u64::from(seconds))));
        }

        #[test]
        fn no_value_of_any_variable_panics(index in 0..VARIABLES.len(), value in "\\PC*") {
            let _ = read(&[(VARIABLES[index].name, &value)]);
        }

        #[test]
        fn strings_come_back_as_they_were_written(model in "[a-zA-Z0-9./:_-]{1,40}", prompt in "\\PC{1,80}") {
            let config = read(&[("OPENAI_MODEL", &model), ("OPENAI_SYSTEM_PROMPT", &prompt)]).unwrap();
            prop_assert_eq!(config.model, model);
            prop_assert_eq!(config.system_prompt, Some(prompt));
        }
    }
}
