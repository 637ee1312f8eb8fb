//! Which certificates are believed: the bundled roots, the system's, and those of `OPENAI_CA_FILE`.
use rustls::ClientConfig;
use stdio_bus_base::trust;

use super::config::Config;
use super::log::note;

/// How TLS connections to the configured endpoint are made.
///
/// # Errors
/// `OPENAI_CA_FILE` cannot be used, and why.
pub fn client_config(config: &Config) -> Result<ClientConfig, String> {
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
