//! What announces to clients where to sign in: the metadata of a protected resource (RFC 9728), and the challenge of a 401 that
//! leads there. The daemon signs nobody in: a client continues from there to the authorization server, and its token is
//! checked by the proxy.

use serde_json::json;

/// Where the metadata is, before the path of the resource (RFC 9728, section 3).
const WELL_KNOWN: &str = "/.well-known/oauth-protected-resource";

/// A listener as a protected resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OAuth {
    document: Box<str>,
    challenge: Box<str>,
    server: Box<str>,
}

impl OAuth {
    /// The resource with this identifier: an address of the web without a slash at its end. `servers` are the issuers of its
    /// authorization servers, of which there is one at least.
    pub fn new(resource: &str, servers: &[String], scopes: &[String]) -> Self {
        let mut document = json!({
            "resource": resource,
            "authorization_servers": servers,
            "bearer_methods_supported": ["header"],
        });
        if !scopes.is_empty() {
            document["scopes_supported"] = scopes.into();
        }
        let (origin, path) = split(resource);
        Self {
            document: document.to_string().into(),
            challenge: format!("Bearer resource_metadata=\"{origin}{WELL_KNOWN}{path}\"").into(),
            server: servers.first().map_or("", String::as_str).into(),
        }
    }

    /// The metadata, in JSON.
    pub fn document(&self) -> &str {
        &self.document
    }

    /// The value of `WWW-Authenticate`: the address is absolute, since some clients take no other.
    pub fn challenge(&self) -> &str {
        &self.challenge
    }

    /// The issuer that clients sign in at.
    pub fn server(&self) -> &str {
        &self.server
    }
}

/// The path behind that of the metadata, if a path is one: what `/mcp` and the paths below it are called there. Clients
/// ask for it with and without the path of the resource.
pub fn metadata_of(path: &str) -> Option<&str> {
    path.strip_prefix(WELL_KNOWN).filter(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The origin of an address of the web, and its path.
pub fn split(address: &str) -> (&str, &str) {
    let authority = address.find("://").map_or(0, |at| at + 3);
    let end = address[authority..].find('/').map_or(address.len(), |at| authority + at);
    address.split_at(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_challenge_leads_to_the_metadata_of_the_resource_by_an_absolute_address() {
        for (resource, place) in [
            ("https://bus.example/mcp", "https://bus.example/.well-known/oauth-protected-resource/mcp"),
            ("https://bus.example:8443", "https://bus.example:8443/.well-known/oauth-protected-resource"),
            ("http://[::1]:9000/a/b", "http://[::1]:9000/.well-known/oauth-protected-resource/a/b"),
        ] {
            let oauth = OAuth::new(resource, &["https://login.example".to_owned()], &[]);
            assert_eq!(oauth.challenge(), format!("Bearer resource_metadata=\"{place}\""));
            let document: serde_json::Value = serde_json::from_str(oauth.document()).expect("it is JSON");
            assert_eq!(document["resource"], resource);
            assert_eq!(document["authorization_servers"], json!(["https://login.example"]));
            assert!(document.get("scopes_supported").is_none(), "no scopes are not the same as unknown ones");
        }
        let scoped = OAuth::new("https://a", &["https://b".to_owned()], &["mcp".to_owned()]);
        assert!(scoped.document().contains(r#""scopes_supported":["mcp"]"#));
    }

    #[test]
    fn metadata_is_at_the_well_known_path_and_with_the_path_of_the_resource_behind_it() {
        for (path, rest) in [
            ("/.well-known/oauth-protected-resource", Some("")),
            ("/.well-known/oauth-protected-resource/", Some("/")),
            ("/.well-known/oauth-protected-resource/mcp/tools", Some("/mcp/tools")),
            ("/.well-known/oauth-protected-resources", None),
            ("/.well-known/oauth-authorization-server", None),
            ("/mcp/.well-known/oauth-protected-resource", None),
        ] {
            assert_eq!(metadata_of(path), rest, "{path}");
        }
    }
}
