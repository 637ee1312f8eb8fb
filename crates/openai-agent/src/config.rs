//! The agent's configuration: environment variables only, read once at the start.
//!
//! Pure: the environment is a function from name to value. An empty value counts as unset. An unusable value is an
//! error that names the variable, the value and what was expected; nothing falls back silently.

use std::path::PathBuf;
use std::time::Duration;

use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::uri::{Authority, PathAndQuery, Scheme, Uri};
use serde_json::{Map, Value as Json};

/// Every variable that the agent reads, in the order of the manual: name, default and meaning. `--help`, the manual
/// page and the table of `docs/openai-agent.md` are generated from it.
const VARIABLES: &str = "\
OPENAI_BASE_URL | https://api.openai.com/v1 | Base URL of the Chat Completions endpoint. A query string is kept.
OPENAI_API_KEY | (empty) | API key. If it is empty, no authentication header is sent.
OPENAI_API_KEY_FILE | (unset) | File that holds the key. It is read before each request.
OPENAI_API_VERSION | (unset) | API version for Azure, sent as ?api-version=.
OPENAI_EXTRA_HEADERS | (unset) | Additional request headers: a JSON object, or lines of `Name: value`.
OPENAI_EXTRA_BODY | (unset) | JSON object that is merged into every request (RFC 7396: null removes a member).
OPENAI_MODEL | gpt-4o | Model of a new session. If unset, it is the first of OPENAI_MODELS, if that lists any.
OPENAI_MODELS | (unset) | Models to choose from, separated by commas; others are refused. fetch: offers what {base}/models lists.
OPENAI_SYSTEM_PROMPT | (unset) | System prompt that is put before every conversation.
OPENAI_MAX_TOKENS | (unset) | Maximum number of tokens of one answer, a whole number from 1.
OPENAI_TEMPERATURE | (unset) | Sampling temperature, a number from 0.
OPENAI_CONTEXT_WINDOW | (the model's) | Context window in tokens, which usage_update reports. If unset, it is taken from {base}/models or from a refusal. 0: no usage_update is sent.
OPENAI_IMAGE_INPUT | 0 | 1: images are sent to the model, and the capability is advertised.
OPENAI_ERRORS | chat | chat: a failed turn is reported as text and ends with end_turn. jsonrpc: it is a JSON-RPC error.
OPENAI_MAX_RETRIES | 2 | Retries of a request to which no byte of an answer came (408, 409, 429, 5xx, connection errors), at most 100.
OPENAI_IDLE_TIMEOUT_SEC | 300 | Seconds until the endpoint has to begin its answer, and of silence within an answer. 0: no limit.
OPENAI_HISTORY_DIR | (unset) | Directory in which sessions are kept, one file each. It enables session/load, resume and delete.
OPENAI_LIST_SESSIONS | all | What session/list shows: all sessions of the directory, or none.
OPENAI_MAX_LINE_BYTES | 33554432 | Maximum length of a line from the client, and of an event from the endpoint, in bytes.
OPENAI_CA_FILE | (unset) | PEM file with certificates to trust in addition to the system's and the bundled ones.
OPENAI_TLS_INSECURE | 0 | 1: the endpoint's certificate is not checked, and anyone on the path can get the key.
OPENAI_LOG | warn | Level of the log on stderr: off, error, warn, info or debug.
HTTPS_PROXY, HTTP_PROXY, ALL_PROXY, NO_PROXY | (unset) | HTTP proxies, in the form that curl reads. Addresses of this machine itself are never reached through one.
SSL_CERT_FILE, SSL_CERT_DIR | (unset) | Certificates that replace the system's root certificates.";

/// The rows of the table: a name (or several), its default, and its meaning.
pub fn variables() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    VARIABLES.lines().filter_map(|row| {
        let (name, row) = row.split_once(" | ")?;
        row.split_once(" | ").map(|(default, help)| (name, default, help))
    })
}

/// What `OPENAI_TLS_INSECURE=1` means.
pub const INSECURE: &str =
    "OPENAI_TLS_INSECURE=1: the endpoint's certificate is not checked; anyone on the path can read and forge answers.";

/// How much is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Off,
    Error,
    Warn,
    Info,
    Debug,
}

/// The endpoint and how to reach it.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// For display: without the query string.
    pub base_url: String,
    /// Where prompts are posted, including the query string.
    pub chat_url: Uri,
    /// Where the models are listed, including the query string.
    pub models_url: Uri,
    pub api_key: Secret,
    /// The file that the key is read from instead.
    pub api_key_file: Option<PathBuf>,
    /// Whether the endpoint expects the key as `api-key`.
    pub is_azure: bool,
    pub extra_headers: HeaderMap,
    pub ca_file: Option<PathBuf>,
    pub tls_insecure: bool,
    pub max_retries: u32,
    pub idle_timeout: Option<Duration>,
}

/// How much the agent keeps, in bytes. Only the longest line can be configured.
#[derive(Clone, Debug)]
pub struct Limits {
    /// One line from the client, and one event from the endpoint.
    pub line: usize,
    /// One conversation; beyond it the oldest turns are dropped.
    pub history: usize,
    /// Memory for all conversations; turns of the least recently used ones are dropped first.
    pub memory: usize,
    /// Number of sessions.
    pub sessions: usize,
}

/// Everything that can be set, and the limits that cannot.
#[derive(Clone, Debug)]
pub struct Config {
    pub endpoint: Endpoint,
    pub limits: Limits,
    pub extra_body: Map<String, Json>,
    pub model: String,
    /// The models offered, if they are configured.
    pub models: Option<Vec<String>>,
    pub fetch_models: bool,
    pub system_prompt: Option<String>,
    pub max_tokens: Option<u64>,
    pub temperature: Option<f64>,
    /// In tokens, if configured; 0 means none.
    pub context_window: Option<u64>,
    pub image_input: bool,
    /// A failed turn is a JSON-RPC error of its prompt; else it is reported as text and ends with `end_turn`.
    pub rpc_errors: bool,
    pub history_dir: Option<PathBuf>,
    /// Whether session/list shows the sessions in the directory.
    pub list_sessions: bool,
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

/// A variable with an unusable value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name}: {problem}")]
pub struct ConfigError {
    /// The variable.
    pub name: &'static str,
    /// What is wrong with its value, and what is expected.
    pub problem: String,
}

fn wrong(name: &'static str, problem: impl Into<String>) -> ConfigError {
    ConfigError { name, problem: problem.into() }
}

/// The environment, trimmed and without empty values.
struct Env<'a>(&'a mut dyn FnMut(&str) -> Option<String>);

impl Env<'_> {
    fn text(&mut self, name: &str) -> Option<String> {
        self.0(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
    }

    fn path(&mut self, name: &str) -> Option<PathBuf> {
        self.text(name).map(PathBuf::from)
    }

    /// A value that `read` accepts, or an error that says what is expected.
    fn read<T>(
        &mut self,
        name: &'static str,
        wanted: &str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, ConfigError> {
        let Some(value) = self.text(name) else { return Ok(None) };
        read(&value).map(Some).ok_or_else(|| wrong(name, format!("{value:?} is not {wanted}")))
    }

    fn number<T: std::str::FromStr + PartialOrd>(
        &mut self,
        name: &'static str,
        wanted: &str,
        least: T,
        most: T,
    ) -> Result<Option<T>, ConfigError> {
        let fits = |number: &T| (&least..=&most).contains(&number);
        self.read(name, wanted, |value| value.parse().ok().filter(fits))
    }

    /// One of these words; the first one if unset.
    fn word<T: Copy>(&mut self, name: &'static str, words: &[(&str, T)]) -> Result<T, ConfigError> {
        let names: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        let find = |value: &str| words.iter().find(|(word, _)| *word == value).map(|(_, meaning)| *meaning);
        Ok(self.read(name, &format!("one of {}", names.join(", ")), find)?.unwrap_or(words[0].1))
    }

    fn switch(&mut self, name: &'static str) -> Result<bool, ConfigError> {
        self.word(name, &[("0", false), ("1", true), ("false", false), ("true", true)])
    }

    fn key(&mut self) -> Result<(Secret, Option<PathBuf>), ConfigError> {
        let (key, file) = (self.text("OPENAI_API_KEY").unwrap_or_default(), self.path("OPENAI_API_KEY_FILE"));
        if HeaderValue::from_str(&key).is_err() {
            return Err(wrong("OPENAI_API_KEY", "has characters that a header cannot carry, a line break perhaps"));
        }
        if !key.is_empty() && file.is_some() {
            return Err(wrong("OPENAI_API_KEY_FILE", "is set, and so is OPENAI_API_KEY; set one of them"));
        }
        Ok((Secret(key), file))
    }
}

impl Config {
    /// Reads the configuration of this process.
    ///
    /// # Errors
    /// The first variable with an unusable value.
    pub fn from_process() -> Result<Self, ConfigError> {
        Self::from_env(&mut |name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()))
    }

    /// Reads the configuration from an environment.
    ///
    /// # Errors
    /// The first variable with an unusable value.
    pub fn from_env(env: &mut dyn FnMut(&str) -> Option<String>) -> Result<Self, ConfigError> {
        let mut env = Env(env);
        let endpoint = Endpoint::from_env(&mut env)?;
        let models = env.text("OPENAI_MODELS");
        let fetch_models = models.as_deref() == Some("fetch");
        let listed = models.iter().flat_map(|list| list.split(',')).map(str::trim).filter(|name| !name.is_empty());
        let models: Vec<String> = listed.filter(|_| !fetch_models).map(str::to_owned).collect();
        Ok(Self {
            endpoint,
            limits: Limits {
                line: env
                    .number("OPENAI_MAX_LINE_BYTES", "a whole number from 1024", 1024, usize::MAX)?
                    .unwrap_or(32 << 20),
                history: 64 << 20,
                memory: 256 << 20,
                sessions: 10_000,
            },
            extra_body: env.text("OPENAI_EXTRA_BODY").map_or(Ok(Map::new()), |value| members(&value))?,
            model: env.text("OPENAI_MODEL").or_else(|| models.first().cloned()).unwrap_or_else(|| "gpt-4o".to_owned()),
            models: Some(models).filter(|list| !list.is_empty()),
            fetch_models,
            max_tokens: env.number("OPENAI_MAX_TOKENS", "a whole number from 1", 1, u64::MAX)?,
            temperature: env.number("OPENAI_TEMPERATURE", "a number from 0", 0.0, f64::MAX)?,
            context_window: env.number("OPENAI_CONTEXT_WINDOW", "a whole number from 0", 0, u64::MAX)?,
            image_input: env.switch("OPENAI_IMAGE_INPUT")?,
            rpc_errors: env.word("OPENAI_ERRORS", &[("chat", false), ("jsonrpc", true)])?,
            history_dir: env.path("OPENAI_HISTORY_DIR"),
            list_sessions: env.word("OPENAI_LIST_SESSIONS", &[("all", true), ("none", false)])?,
            log: env.word(
                "OPENAI_LOG",
                &[
                    ("warn", Level::Warn),
                    ("off", Level::Off),
                    ("error", Level::Error),
                    ("info", Level::Info),
                    ("debug", Level::Debug),
                ],
            )?,
            // The one value whose surrounding space may matter: it is passed unchanged.
            system_prompt: env.0("OPENAI_SYSTEM_PROMPT").filter(|prompt| !prompt.is_empty()),
        })
    }

    /// Returns the allowed models if `model` is not one of them. Only a configured list restricts the models.
    pub fn refuses_model(&self, model: &str) -> Option<&[String]> {
        let listed = self.models.as_deref()?;
        (model != self.model && !listed.iter().any(|known| known == model)).then_some(listed)
    }
}

impl Endpoint {
    fn from_env(env: &mut Env<'_>) -> Result<Self, ConfigError> {
        let base_url = env.text("OPENAI_BASE_URL").unwrap_or_else(|| "https://api.openai.com/v1".to_owned());
        let api_version = env.text("OPENAI_API_VERSION");
        let chat_url = endpoint_url(&base_url, "/chat/completions", api_version.as_deref())?;
        let (api_key, api_key_file) = env.key()?;
        let seconds = |value: &str| {
            let time = Duration::try_from_secs_f64(value.parse().ok()?).ok()?;
            (time <= Duration::from_secs(365 * 86_400)).then_some(time)
        };
        let idle = env.read("OPENAI_IDLE_TIMEOUT_SEC", "a number of seconds from 0", seconds)?;
        Ok(Self {
            models_url: endpoint_url(&base_url, "/models", api_version.as_deref())?,
            is_azure: api_version.is_some() || is_azure(chat_url.host()),
            api_key,
            api_key_file,
            extra_headers: env.text("OPENAI_EXTRA_HEADERS").map_or(Ok(HeaderMap::new()), |value| headers(&value))?,
            ca_file: env.path("OPENAI_CA_FILE"),
            tls_insecure: env.switch("OPENAI_TLS_INSECURE")?,
            max_retries: env.number("OPENAI_MAX_RETRIES", "a whole number from 0 to 100", 0, 100)?.unwrap_or(2),
            idle_timeout: Some(idle.unwrap_or(Duration::from_secs(300))).filter(|idle| !idle.is_zero()),
            chat_url,
            base_url: without_credentials(&base_url),
        })
    }

    /// The URL shown in errors: without the query string, where some endpoints keep their keys.
    pub fn shown_url(&self) -> String {
        let text = self.chat_url.to_string();
        text.split('?').next().unwrap_or_default().to_owned()
    }
}

/// The members of a JSON object. The error does not quote the value: it may be a key.
fn object(name: &'static str, value: &str) -> Result<Map<String, Json>, ConfigError> {
    serde_json::from_str(value)
        .map_err(|error| wrong(name, format!("is not a JSON object: line {}, column {}", error.line(), error.column())))
}

/// The members of `OPENAI_EXTRA_BODY`.
fn members(value: &str) -> Result<Map<String, Json>, ConfigError> {
    let members = object("OPENAI_EXTRA_BODY", value)?;
    match ["messages", "model"].iter().find(|name| members.contains_key(**name)) {
        Some(name) => Err(wrong(
            "OPENAI_EXTRA_BODY",
            format!("{name:?} is the agent's own to say (OPENAI_MODEL, OPENAI_SYSTEM_PROMPT)"),
        )),
        None => Ok(members),
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
    let shown = without_credentials(base);
    if base.starts_with(['"', '\'']) {
        return Err(wrong(name, format!("{shown:?} has quotation marks around it; leave them out")));
    }
    if !base.contains("://") {
        let meant = with_scheme(&shown).map_or_else(String::new, |meant| format!("; did you mean {meant:?}?"));
        return Err(wrong(name, format!("{shown:?} does not begin with http:// or https://{meant}")));
    }
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
    // Some users copy the whole address of the method, which is accepted.
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

/// The URL that was probably meant by one without a scheme; none if it is no host with a path. A server on this machine
/// or in its network rarely speaks TLS, and one with a name of the internet does.
fn with_scheme(shown: &str) -> Option<String> {
    let rest = shown.strip_prefix("https:").or_else(|| shown.strip_prefix("http:")).unwrap_or(shown);
    let is_path = rest.starts_with('/') && !rest.starts_with("//") && rest.len() == shown.len();
    let rest = Some(rest.trim_start_matches('/')).filter(|_| !is_path)?;
    let authority: Authority = rest.split('/').next()?.parse().ok()?;
    let host = authority.host();
    if host.is_empty() || authority.as_str().contains('@') || !has_port(&authority) {
        return None;
    }
    let is_name = host.contains('.') && host.parse::<std::net::Ipv4Addr>().is_err() && !host.starts_with('[');
    let is_near = !is_name || [".local", ".localhost", ".internal", ".lan"].iter().any(|end| host.ends_with(end));
    let is_plain = match authority.port_u16() {
        Some(port) => port != 443,
        None => is_near && !shown.starts_with("https:"),
    };
    Some(format!("{}://{rest}", if is_plain { "http" } else { "https" }))
}

/// Whether the port of a URL is valid; without one it is the scheme's. Libraries take one beyond 65535 as none.
pub fn has_port(authority: &Authority) -> bool {
    let port = authority.as_str().rsplit_once(']').map_or(authority.as_str(), |(_, after)| after);
    match port.rsplit_once(':') {
        None => true,
        Some((_, port)) => {
            port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|port| port > 0)
        }
    }
}

/// A URL, or what the user takes for one, without query string and credentials.
fn without_credentials(url: &str) -> String {
    let url = url.split(['?', '#']).next().unwrap_or_default();
    let (scheme, rest) = url.split_at(url.find("://").map_or(0, |at| at + 3));
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    match authority.rsplit_once('@') {
        Some((_, host)) => format!("{scheme}***@{host}{path}"),
        None => url.to_owned(),
    }
}

fn headers(value: &str) -> Result<HeaderMap, ConfigError> {
    let name = "OPENAI_EXTRA_HEADERS";
    // The error does not quote the value: it may be a key.
    let pairs: Vec<(String, String)> = if value.starts_with('{') {
        let strings = object(name, value)?.into_iter().map(|(key, value)| match value {
            Json::String(value) => Ok((key, value)),
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
        // It may be a key: it must not reach logs or compression tables.
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
    fn the_defaults_are_those_of_the_rfd() {
        let config = read(&[]).unwrap();
        assert_eq!(config.endpoint.chat_url, "https://api.openai.com/v1/chat/completions");
        assert_eq!(config.model, "gpt-4o");
        assert_eq!((config.endpoint.api_key.0.as_str(), config.endpoint.is_azure), ("", false));
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
            config.endpoint.chat_url,
            "https://x.openai.azure.com/openai/deployments/d/chat/completions?tier=1&api-version=2024-10-21"
        );
        assert!(config.endpoint.is_azure);
        assert_eq!(config.endpoint.shown_url(), "https://x.openai.azure.com/openai/deployments/d/chat/completions");
    }

    #[test]
    fn an_api_version_in_the_url_wins() {
        let config = read(&[("OPENAI_BASE_URL", "http://h/v1?api-version=1"), ("OPENAI_API_VERSION", "2")]).unwrap();
        assert_eq!(config.endpoint.chat_url, "http://h/v1/chat/completions?api-version=1");
    }

    #[test]
    fn the_address_of_the_method_itself_is_understood() {
        let config = read(&[("OPENAI_BASE_URL", "http://h/v1/chat/completions")]).unwrap();
        assert_eq!(config.endpoint.chat_url, "http://h/v1/chat/completions");
        assert_eq!(config.endpoint.models_url, "http://h/v1/models");
    }

    #[test]
    fn unusable_values_are_named() {
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
            ("OPENAI_ERRORS", "loud"),
            ("OPENAI_IMAGE_INPUT", "maybe"),
            ("OPENAI_EXTRA_HEADERS", "no colon"),
            ("OPENAI_EXTRA_HEADERS", "{\"a\":1}"),
            ("OPENAI_MAX_RETRIES", "101"),
            ("OPENAI_IDLE_TIMEOUT_SEC", "inf"),
            ("OPENAI_LOG", "all"),
            ("OPENAI_LIST_SESSIONS", "mine"),
            ("OPENAI_API_KEY", "a\nb"),
            ("OPENAI_EXTRA_BODY", "[]"),
            ("OPENAI_EXTRA_BODY", "{"),
            ("OPENAI_EXTRA_BODY", r#"{"model":"x"}"#),
            ("OPENAI_EXTRA_BODY", r#"{"messages":[]}"#),
            ("OPENAI_MAX_LINE_BYTES", "1023"),
            ("OPENAI_IDLE_TIMEOUT_SEC", "-1"),
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
    fn a_url_without_a_scheme_is_answered_with_the_one_that_was_meant() {
        for (url, meant) in [
            ("localhost:11434/v1", "http://localhost:11434/v1"),
            ("localhost:11434", "http://localhost:11434"),
            ("127.0.0.1:8000/v1", "http://127.0.0.1:8000/v1"),
            ("10.0.0.7/v1", "http://10.0.0.7/v1"),
            ("[::1]:8080/v1", "http://[::1]:8080/v1"),
            ("ollama/v1", "http://ollama/v1"),
            ("gpu.lan/v1", "http://gpu.lan/v1"),
            ("//localhost:1234/v1", "http://localhost:1234/v1"),
            ("http:/localhost:1234/v1", "http://localhost:1234/v1"),
            ("http:localhost:1234/v1", "http://localhost:1234/v1"),
            ("https:/model.test/v1", "https://model.test/v1"),
            ("api.openai.com/v1", "https://api.openai.com/v1"),
            ("model.test:443/v1", "https://model.test:443/v1"),
            ("model.test:8080/v1", "http://model.test:8080/v1"),
        ] {
            let error = read(&[("OPENAI_BASE_URL", url)]).unwrap_err().to_string();
            assert!(error.ends_with(&format!("http:// or https://; did you mean {meant:?}?")), "{error}");
            assert!(read(&[("OPENAI_BASE_URL", meant)]).is_ok(), "{meant}");
        }
        for nothing in ["/v1", "user:pass@host/v1", "host:99999/v1", "two words"] {
            let error = read(&[("OPENAI_BASE_URL", nothing)]).unwrap_err().to_string();
            assert!(error.ends_with("http:// or https://") && !error.contains("pass"), "{error}");
        }
        let error = read(&[("OPENAI_BASE_URL", "\"http://localhost:11434/v1\"")]).unwrap_err().to_string();
        assert!(error.ends_with("has quotation marks around it; leave them out"), "{error}");
    }

    #[test]
    fn the_first_of_the_listed_models_is_the_default() {
        let model = |pairs: &[(&str, &str)]| read(pairs).unwrap().model;
        assert_eq!(model(&[("OPENAI_MODELS", " , a, b")]), "a");
        assert_eq!(model(&[("OPENAI_MODELS", "a,b"), ("OPENAI_MODEL", "")]), "a");
        assert_eq!(model(&[("OPENAI_MODELS", "a,b"), ("OPENAI_MODEL", "b")]), "b");
        assert_eq!(model(&[("OPENAI_MODELS", "fetch")]), "gpt-4o");
        assert_eq!(model(&[("OPENAI_MODELS", " , ")]), "gpt-4o");
    }

    #[test]
    fn every_port_that_exists_can_be_used() {
        for url in ["http://h:1/v1", "http://h:65535/v1", "http://[::1]:8080/v1", "http://[::1]/v1", "http://h/v1"] {
            assert!(read(&[("OPENAI_BASE_URL", url)]).is_ok(), "{url}");
        }
    }

    #[test]
    fn the_key_comes_from_one_place() {
        let file = ("OPENAI_API_KEY_FILE", "/f");
        assert_eq!(read(&[file]).unwrap().endpoint.api_key_file.as_deref(), Some(std::path::Path::new("/f")));
        assert_eq!(read(&[("OPENAI_API_KEY", "k"), file]).unwrap_err().name, "OPENAI_API_KEY_FILE");
        assert!(read(&[("OPENAI_API_KEY", ""), file]).is_ok());
    }

    #[test]
    fn models_are_listed_or_fetched() {
        let models = |list: &str| read(&[("OPENAI_MODELS", list)]).map(|config| (config.models, config.fetch_models));
        assert_eq!(models("a, b,"), Ok((Some(vec!["a".to_owned(), "b".to_owned()]), false)));
        assert_eq!(models("fetch"), Ok((None, true)));
        assert_eq!(models(" , "), Ok((None, false)));
    }

    /// The table of the manual, on the page and here.
    #[test]
    fn the_manual_has_every_variable_as_it_is() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openai-agent.md");
        let page = std::fs::read_to_string(page).unwrap();
        let names = |name: &str| name.split(", ").map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        let rows = variables().map(|(name, default, help)| format!("| {} | `{default}` | {help} |", names(name)));
        let wanted = rows.collect::<Vec<_>>().join("\n");
        assert!(page.contains(&wanted), "the table of docs/openai-agent.md should be:\n{wanted}");
        let spoken = page.split(|letter: char| !letter.is_ascii_uppercase() && letter != '_');
        for name in spoken.filter(|word| word.starts_with("OPENAI_") && !word.ends_with('_')) {
            assert!(variables().any(|variable| variable.0 == name), "{name} of docs/openai-agent.md");
        }
    }

    #[test]
    fn headers_come_as_lines_or_as_json() {
        for text in ["X-A: 1\nx-b: two: three", "{\"X-A\":\"1\",\"x-b\":\"two: three\"}"] {
            let config = read(&[("OPENAI_EXTRA_HEADERS", text)]).unwrap();
            assert_eq!(config.endpoint.extra_headers["x-a"], "1");
            assert_eq!(config.endpoint.extra_headers["x-b"], "two: three");
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
            prop_assert_eq!(config.endpoint.idle_timeout, Some(Duration::from_secs(u64::from(seconds))));
        }

        #[test]
        fn no_value_of_any_variable_panics(index in 0..variables().count(), value in "\\PC*") {
            let _ = read(&[(variables().nth(index).unwrap().0, &value)]);
        }

        #[test]
        fn strings_come_back_as_they_were_written(model in "[a-zA-Z0-9./:_-]{1,40}", prompt in "\\PC{1,80}") {
            let config = read(&[("OPENAI_MODEL", &model), ("OPENAI_SYSTEM_PROMPT", &prompt)]).unwrap();
            prop_assert_eq!(config.model, model);
            prop_assert_eq!(config.system_prompt, Some(prompt));
        }
    }
}
