//! Variables of workers that are those of the client that a worker is for (`pools[].env_from`).

use std::path::PathBuf;

use super::document::{Node, Object, Reader};
use super::values::{checked, header_fault};
use super::{Listener, PoolConfig};
use crate::bus::settings::{Assignment, Start};
use crate::env_file;

/// What the worker of a client gets as its variables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EnvFrom {
    /// The folder with a file for each verified name.
    pub files: Option<PathBuf>,
    /// The header of a request, as it was written, and the variable that gets its value.
    pub headers: Vec<(Box<str>, String)>,
}

/// Variables that decide what a worker runs, or whom it connects to: a client is not to choose them.
fn is_dangerous(name: &str) -> bool {
    const BEGINNINGS: [&str; 11] =
        ["LD_", "NPM_CONFIG_", "UV_", "PIP_", "GIT_", "BASH_", "PYTHON", "PERL5", "RUBY", "DOTNET_", "STDIO_BUS"];
    const NAMES: [&str; 26] = [
        "PATH",
        "HOME",
        "USER",
        "LOGNAME",
        "SHELL",
        "SHELLOPTS",
        "IFS",
        "ENV",
        "PS4",
        "TMPDIR",
        "NODE_OPTIONS",
        "NODE_PATH",
        "NODE_EXTRA_CA_CERTS",
        "NODE_TLS_REJECT_UNAUTHORIZED",
        "CLASSPATH",
        "JAVA_TOOL_OPTIONS",
        "_JAVA_OPTIONS",
        "JDK_JAVA_OPTIONS",
        "GCONV_PATH",
        "GLIBC_TUNABLES",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
        "REQUESTS_CA_BUNDLE",
    ];
    // Proxies and npm's settings are read in either case.
    let name = name.to_ascii_uppercase();
    BEGINNINGS.iter().any(|beginning| name.starts_with(beginning)) || NAMES.contains(&&*name)
}

/// Whether proxies write this header to say who a client is: other programs take its value for true.
fn is_claim(header: &str) -> bool {
    const CLAIMS: [&str; 26] = [
        "cf-access-authenticated-user-email",
        "remote-email",
        "remote-group",
        "remote-groups",
        "remote-name",
        "remote-user",
        "tailscale-user-login",
        "tailscale-user-name",
        "x-amzn-oidc-identity",
        "x-auth-request-email",
        "x-auth-request-groups",
        "x-auth-request-preferred-username",
        "x-auth-request-user",
        "x-authenticated-user",
        "x-authentik-email",
        "x-authentik-groups",
        "x-authentik-username",
        "x-forwarded-email",
        "x-forwarded-groups",
        "x-forwarded-preferred-username",
        "x-forwarded-user",
        "x-goog-authenticated-user-email",
        "x-ms-client-principal-name",
        "x-remote-group",
        "x-remote-user",
        "x-webauth-user",
    ];
    CLAIMS.iter().any(|claim| claim.eq_ignore_ascii_case(header))
}

/// Headers that say who a client is, and are variables of workers of a listener where any client may write them: the place of
/// the listener, what is wrong, and what to do about it.
pub(super) fn unproven(listeners: &[Listener], pools: &[PoolConfig]) -> Vec<(usize, String, String)> {
    let names = |listener: &Listener, header: &str| {
        let identity = listener.web.as_ref().and_then(|web| web.access.identity.as_ref());
        let mut fields = identity.into_iter().flat_map(|own| own.groups_header.iter().chain([&own.header]));
        fields.any(|field| field.eq_ignore_ascii_case(header))
    };
    let is_believed = |header: &str| is_claim(header) || listeners.iter().any(|listener| names(listener, header));
    let mut found = Vec::new();
    for (at, listener) in listeners.iter().enumerate().filter(|(_, listener)| listener.web.is_some()) {
        for pool in listener.offered(pools.len()).into_iter().filter_map(|pool| pools.get(pool)) {
            for (header, variable) in pool.env_from.iter().flat_map(|from| &from.headers) {
                if is_believed(header) && !names(listener, header) {
                    let what = format!(
                        "any client can write {header} here, and workers of the pool {:?} take {variable} from it for who the \
                         client is",
                        pool.core.id
                    );
                    let remedy = "name the header in identity of this listener (header, groups_header), or leave it out of \
                                  env_from.headers";
                    found.push((at, what, remedy.to_owned()));
                }
            }
        }
    }
    found
}

/// `pools[].env_from`. `env` has the variables that the configuration sets.
pub(super) fn env_from<'t>(
    reader: &mut Reader<'t>,
    object: &Object<'t>,
    assignment: Assignment,
    sets: impl Fn(&str) -> bool,
) -> Option<EnvFrom> {
    let node = object.get("env_from")?;
    if assignment != Assignment::Dedicated {
        let hint = "set \"assignment\": \"dedicated\": each client has a worker of its own then".to_owned();
        reader.fail(node, "is for dedicated pools: a worker that clients share is nobody's own", Some(hint));
    }
    if let Some(node) = object.get("instances") {
        let hint =
            "leave instances out: each worker is started for its client, and max_instances says how many".to_owned();
        reader.fail(
            node,
            "starts workers before any client has connected, and with env_from each is for one client",
            Some(hint),
        );
    }
    let starts = [Start::AtOnce, Start::OnDemand];
    if let Some(node) = object.get("start").filter(|_| reader.choice(object, "start", starts) == Some(Start::OnDemand))
    {
        let hint = "leave start out: each worker is started when its client needs it".to_owned();
        reader.fail(node, "is for pools that are awake or asleep for all clients", Some(hint));
    }
    let from = reader.object(node, "pools[].env_from")?;
    let files = from.get("files").and_then(|node| {
        let path = reader.string(node)?;
        let path = checked(&path).map(PathBuf::from).map_err(|why| format!("the folder {path:?} {why}"));
        reader.found(node, path)
    });
    let headers = from.get("headers").map(|node| headers(reader, node, sets)).unwrap_or_default();
    if from.get("files").is_none() && headers.is_empty() {
        let hint = "write \"files\": \"/etc/stdio-bus/users\", or \"headers\": {\"X-Github-Token\": \"GITHUB_TOKEN\"}";
        reader.fail(node, "names neither headers nor files of the client", Some(hint.to_owned()));
    }
    Some(EnvFrom { files, headers })
}

fn headers<'t>(reader: &mut Reader<'t>, node: &Node<'t>, sets: impl Fn(&str) -> bool) -> Vec<(Box<str>, String)> {
    let mut headers: Vec<(Box<str>, String)> = Vec::new();
    for (header, header_node, variable) in reader.strings_by_name(node).unwrap_or_default() {
        let is_first = !headers.iter().any(|(_, known)| *known == variable);
        let why = if let Some(why) = header_fault(&header) {
            why
        } else if headers.iter().any(|(known, _)| known.eq_ignore_ascii_case(&header)) {
            format!("{header:?} is given twice")
        } else if !env_file::is_variable(&variable) {
            format!(
                "{variable:?} cannot be the name of a variable: it has letters, digits and _, and begins with no digit"
            )
        } else if is_dangerous(&variable) {
            format!("with {variable} clients would choose what the worker runs, or whom it connects to")
        } else if sets(&variable) {
            format!("{variable} is in env, too, and can have one value")
        } else if !is_first {
            format!("{variable} is that of another header, and can have one value")
        } else {
            headers.push((header.into(), variable));
            continue;
        };
        reader.fail(&header_node, why, None);
    }
    headers
}

impl EnvFrom {
    /// Whether workers need headers of their client's request.
    pub(super) fn has_headers(&self) -> bool {
        !self.headers.is_empty()
    }

    /// What would be set, as far as that is known before a client has come.
    pub fn says(&self) -> String {
        let headers = self.headers.iter().map(|(header, variable)| format!("{variable} from the header {header}"));
        let files = self.files.iter().map(|files| format!("what is in {}/{{token,cn,user}}/NAME.env", files.display()));
        headers.chain(files).collect::<Vec<_>>().join(", ")
    }
}
