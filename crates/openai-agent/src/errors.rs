//! What can go wrong with a turn, and the words for it: the RFD's texts, or JSON-RPC errors. Pure.

use serde_json::json;

use super::complaint::ServerError;
use super::rpc::RpcError;
use super::secrets::Secrets;

/// Why a turn failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The endpoint answered with a status that is not a success.
    Status {
        /// HTTP status.
        status: u16,
        /// What the body says of it, if it does.
        detail: String,
    },
    /// No connection, or one that broke off, or silence: what happened.
    Network(String),
    /// An error object within a successful response.
    Server(ServerError),
    /// The model stopped for a reason that is no proper end: the endpoint's word for it.
    Ended(String),
    /// A successful response that is no completion: its content type.
    NotACompletion(String),
    /// An event or an answer was longer than the configured number of bytes.
    TooLong(usize),
    /// The kept history could not be read.
    History(String),
    /// There is no key to ask with: why.
    Key(String),
}

impl Failure {
    /// The words for people. `url` is the address that was called.
    pub fn text(&self, url: &str) -> String {
        match self {
            Self::Status { status, detail } => status_text(*status, detail, url),
            Self::Server(error) => match error.code {
                Some(code) => status_text(code, &error.message, url),
                None => format!("Error from {url}: {}", error.message),
            },
            Self::Ended(word) => {
                format!("The answer from {url} is not complete: the endpoint ended it with finish_reason {word:?}.")
            }
            Self::Network(message) => format!("Network error connecting to {url}: {message}"),
            Self::NotACompletion(kind) => {
                format!(
                    "Unexpected answer from {url}: {kind} instead of a chat completion. Check your OPENAI_BASE_URL."
                )
            }
            Self::TooLong(limit) => format!("Answer from {url} is longer than the limit of {limit} bytes."),
            Self::History(message) => format!("The history of this session cannot be read: {message}"),
            Self::Key(message) => format!("No API key for {url}: {message}"),
        }
    }

    /// The same without any secret that the endpoint has quoted.
    pub fn masked(self, secrets: &Secrets) -> Self {
        match self {
            Self::Status { status, detail } => Self::Status { status, detail: secrets.mask(&detail) },
            Self::Network(message) => Self::Network(secrets.mask(&message)),
            Self::Server(error) => Self::Server(ServerError { message: secrets.mask(&error.message), ..error }),
            Self::Ended(word) => Self::Ended(secrets.mask(&word)),
            Self::NotACompletion(kind) => Self::NotACompletion(secrets.mask(&kind)),
            Self::TooLong(limit) => Self::TooLong(limit),
            Self::History(message) => Self::History(message),
            Self::Key(message) => Self::Key(secrets.mask(&message)),
        }
    }

    /// The HTTP status, if there was one.
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Status { status, .. } => Some(*status),
            Self::Server(error) => error.code,
            _ => None,
        }
    }

    /// Whether the endpoint will not have this prompt: it would not have it either beside the next one.
    pub fn is_refusal(&self) -> bool {
        matches!(self.status(), Some(400 | 413 | 422)) || self.is_of_images()
    }

    /// Whether the model takes no images, in the words of many servers. llama.cpp says so with 500 and OpenRouter with
    /// 404.
    pub fn is_of_images(&self) -> bool {
        let words = self.detail().to_ascii_lowercase();
        !matches!(self.status(), Some(401 | 403 | 429))
            && NO_IMAGES.split('|').any(|signs| signs.split('+').all(|sign| words.contains(sign)))
    }

    /// What the server said beside the words of [`Self::text`], for the log.
    pub fn detail(&self) -> &str {
        match self {
            Self::Status { detail, .. } => detail,
            Self::Server(error) => &error.message,
            _ => "",
        }
    }

    /// The same as a JSON-RPC error: -32000 when the key is missing or wrong, else -32603.
    pub fn rpc_error(&self, url: &str) -> RpcError {
        let is_key = matches!(self.status(), Some(401 | 403)) || matches!(self, Self::Key(_));
        let code = if is_key { -32000 } else { -32603 };
        let mut data = json!({ "url": url });
        if let Some(status) = self.status() {
            data["status"] = status.into();
        }
        if !self.detail().is_empty() {
            data["detail"] = self.detail().into();
        }
        RpcError { code, message: self.text(url), data: Some(data) }
    }
}

/// Words that stand together where a model takes no images: of llama.cpp, Ollama, OpenRouter, Mistral, OpenAI, Azure,
/// vLLM, of DeepSeek and others by what they expect in the place of an image, and of proxies.
const NO_IMAGES: &str = "image input|image_url+only supported by certain models|not a multimodal model|at most 0 image|\
    image_url+unknown|image_url+unsupported|image_url+not support|content must be a string|\
    input should be 'text'|vision+not support";

fn status_text(status: u16, detail: &str, url: &str) -> String {
    let words = match status {
        401 | 403 => format!("Authentication error (HTTP {status}) calling {url}. Check your OPENAI_API_KEY."),
        429 => format!("Rate limit exceeded (HTTP 429) calling {url}. Please retry later."),
        500.. => format!("Server error (HTTP {status}) from {url}."),
        _ if detail.is_empty() => format!("Request refused (HTTP {status}) by {url}."),
        _ => return format!("Request refused (HTTP {status}) by {url}: {detail}"),
    };
    match detail.is_empty() {
        true => words,
        false => format!("{words} It says: {detail}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn status(status: u16) -> Failure {
        Failure::Status { status, detail: String::new() }
    }

    #[test]
    fn the_texts_are_the_rfds() {
        let url = "http://h/v1/chat/completions";
        for (failure, text) in [
            (
                status(401),
                "Authentication error (HTTP 401) calling http://h/v1/chat/completions. Check your OPENAI_API_KEY.",
            ),
            (
                status(403),
                "Authentication error (HTTP 403) calling http://h/v1/chat/completions. Check your OPENAI_API_KEY.",
            ),
            (status(429), "Rate limit exceeded (HTTP 429) calling http://h/v1/chat/completions. Please retry later."),
            (status(502), "Server error (HTTP 502) from http://h/v1/chat/completions."),
            (
                Failure::Status { status: 502, detail: "no worker".into() },
                "Server error (HTTP 502) from http://h/v1/chat/completions. It says: no worker",
            ),
            (
                Failure::Ended("abort".into()),
                "The answer from http://h/v1/chat/completions is not complete: the endpoint ended it with finish_reason \"abort\".",
            ),
            (Failure::Network("reset".into()), "Network error connecting to http://h/v1/chat/completions: reset"),
        ] {
            assert_eq!(failure.text(url), text);
        }
    }

    #[test]
    fn a_prompt_that_would_be_refused_again_is_a_refusal() {
        for (code, detail, is_refusal) in [
            (400, "context is full", true),
            (413, "", true),
            (422, "", true),
            (500, "image input is not supported - hint: you may need to provide the mmproj", true),
            (404, "No endpoints found that support image input", true),
            (500, "out of memory", false),
            (404, "no such model", false),
            (429, "", false),
        ] {
            let failure = Failure::Status { status: code, detail: detail.to_owned() };
            assert_eq!(failure.is_refusal(), is_refusal, "{code} {detail}");
            let inside = Failure::Server(ServerError { code: Some(code), message: detail.to_owned() });
            assert_eq!(inside.is_refusal(), is_refusal, "{code} {detail}");
        }
        assert!(!Failure::Network("reset".into()).is_refusal());
    }

    #[test]
    fn a_model_without_vision_is_recognised_in_the_words_of_many_servers() {
        for (code, detail, is_of_images) in [
            (400, "this model does not support image input", true),
            (404, "No endpoints found that support image input", true),
            (400, "Invalid content type. image_url is only supported by certain models.", true),
            (400, "facebook/opt-125m is not a multimodal model", true),
            (400, "At most 0 image(s) may be provided in one prompt.", true),
            (400, "messages[0]: unknown variant `image_url`, expected `text` at line 1 column 99", true),
            (400, "Unsupported content part type for text-only server: image_url", true),
            (400, "messages[0].content must be a string", true),
            (422, "body.messages.0.content: Input should be 'text'", true),
            (400, "The model `x` does not support vision", true),
            (400, "You uploaded an unsupported image. Please make sure your image is below 20 MB in size", false),
            (400, "Error while downloading https://h/a.png. Upstream status code: 404.", false),
            (429, "image input tokens per minute", false),
        ] {
            let failure = Failure::Status { status: code, detail: detail.to_owned() };
            assert_eq!(failure.is_of_images(), is_of_images, "{code} {detail}");
        }
    }

    proptest! {
        #[test]
        fn every_status_has_its_class(code in 300u16..600, detail in "\\PC{0,20}") {
            let failure = Failure::Status { status: code, detail: detail.clone() };
            let text = failure.text("U");
            prop_assert_eq!(text.starts_with("Authentication error"), code == 401 || code == 403);
            prop_assert_eq!(text.starts_with("Rate limit exceeded"), code == 429);
            prop_assert_eq!(text.starts_with("Server error"), code >= 500);
            let has_status = text.contains(&format!("HTTP {code}"));
            prop_assert!(has_status && text.contains('U'));
            prop_assert_eq!(failure.rpc_error("U").code, if code == 401 || code == 403 { -32000 } else { -32603 });
            // An error told inside a stream reads like the same error told by a status.
            let inside = Failure::Server(ServerError { code: Some(code), message: detail });
            if code >= 400 {
                prop_assert_eq!(inside.text("U"), text);
            }
        }
    }
}
