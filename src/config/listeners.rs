//! The listeners of a configuration: addresses, access and limits.

use std::net::{IpAddr, Ipv6Addr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::client_env;
use super::document::{Node, Object, Reader};
use super::keys;
use super::table;
use super::users::{self, MAX_ID};
use super::values::{denied, header_fault, number, set_mode, small_file, socket_mode};
use super::{Listen, Listener, NoFile, Owner, PoolConfig, Web, same_place};
use crate::access::{Groups, Identity, LONGEST_NAME, OAuth, Policy, Tokens, names_this_machine, oauth};
use crate::address::Address;
use crate::bus::networks::Network;
use crate::bus::port::{EVERYBODY, PoolId};
use crate::bus::settings::{Entry, MaxConnections, Proxies, RuleScope, Rules};
use crate::kinds::{self, KINDS, KindRow, listed, over_http};
use crate::websocket::HEALTH;

pub(super) fn listeners<'t>(reader: &mut Reader<'t>, node: &Node<'t>, pools: &[PoolConfig]) -> Vec<Listener> {
    let (mut listeners, mut places) = (Vec::<Listener>::new(), Vec::new());
    for element in reader.array(node).unwrap_or_default() {
        let Some(object) = reader.object(&element, "listeners[]") else { continue };
        let pool = object.get("pool").and_then(|node| pool_index(reader, node, pools));
        let (named, groups) = object.get("pools").map_or((None, None), |node| offered(reader, node, pools));
        if let (Some(node), Some(pool), Some(named)) = (object.get("pool"), pool, &named)
            && !named.contains(&pool)
        {
            let id = &pools[pool].core.id;
            let hint = format!("add {id:?} to pools, or leave pool out");
            reader.fail(node, format!("{id:?} is not among the pools of this listener"), Some(hint));
        }
        let max_connections = object.get("max_connections").map(|node| max_connections(reader, node));
        let idle_timeout = number(reader, &object, "idle_timeout_sec").map(Duration::from_secs);
        let closes_when_not_ready = reader.choice(&object, "when_not_ready", [false, true]).unwrap_or_default();
        let Some((node, listen)) = listen(reader, &object) else { continue };
        let reuse_port = object.get("reuse_port").is_some_and(|node| reuse_port(reader, node, &listen));
        let are_by_group = groups.is_some();
        let rules = object.get("rules").map(|node| rules(reader, node, &object)).unwrap_or_default();
        let web = web(reader, &object, &listen, pools, groups, rules.iter().any(|(_, rules)| is_by_group(rules)));
        let identity = web.as_ref().and_then(|web| web.access.identity.as_ref());
        let is_known = identity.is_some() || object.get("identity").is_none();
        if let Some(node) = object.get("pools").filter(|_| are_by_group && is_known)
            && identity.is_none_or(|identity| identity.groups_header.is_none())
            && object.get("tokens_file").is_none()
        {
            let hint = "write \"identity\": {\"header\": …, \"groups_header\": …}, or groups=… in a tokens_file; listeners of \
                        lines have neither";
            reader.fail(node, "are by group, and nothing says who is in one", Some(hint.to_owned()));
        }
        let knows_groups = identity.is_some_and(|identity| identity.groups_header.is_some());
        for (place, _) in rules.iter().filter(|(_, rules)| is_by_group(rules)) {
            if is_known && !knows_groups && object.get("tokens_file").is_none() {
                let hint =
                    "add identity.groups_header, or groups=… in a tokens_file; the group \"*\" is everybody".to_owned();
                reader.fail(place, "is a group, and nothing says who is in one", Some(hint));
            }
        }
        let rules = rules.into_iter().map(|(_, rules)| rules).collect();
        if listeners.iter().any(|other| same_place(&other.listen, &listen)) {
            reader.fail(&node, format!("{listen} is listened on already"), None);
        }
        let is_known = |key, is_read: bool| is_read || object.get(key).is_none();
        let are_pools_known = is_known("pool", pool.is_some()) && is_known("pools", named.is_some());
        // A client that was granted one pool was not granted the others.
        let named = named.or_else(|| pool.map(|pool| vec![pool]));
        let max_connections = max_connections.unwrap_or_default();
        let entry = entry(reader, &object, &listen);
        let listener = Listener {
            listen,
            pool,
            pools: named,
            max_connections,
            idle_timeout,
            entry,
            rules,
            closes_when_not_ready,
            reuse_port,
            web,
            is_gone: false,
            moved_to: Vec::new(),
        };
        if are_pools_known {
            for (what, remedy) in listener.objections(pools, false) {
                reader.fail(&node, what, Some(remedy));
            }
        }
        listeners.push(listener);
        places.push(element);
    }
    for (at, what, remedy) in client_env::unproven(&listeners, pools) {
        reader.fail(&places[at], what, Some(remedy));
    }
    listeners
}

fn entry<'t>(reader: &mut Reader<'t>, object: &Object<'t>, listen: &Listen) -> Entry {
    let is_unix = listen.is_unix();
    let proxy = object.get("proxy").and_then(|node| proxy(reader, node, is_unix));
    let allow = object.get("allow").and_then(|node| {
        if is_unix && object.get("proxy").is_none() {
            let hint =
                "use mode, owner or peer_uids; with proxy it is about the addresses that the proxy reports".to_owned();
            reader.fail(node, "is for network addresses; clients of a Unix socket have none", Some(hint));
            return None;
        }
        networks(reader, node)
    });
    let peer_uids = object.get("peer_uids").and_then(|node| {
        if !is_unix {
            let hint = "use allow".to_owned();
            reader.fail(node, "is for users of this machine; clients of a TCP port are not known as one", Some(hint));
            return None;
        }
        user_ids(reader, node)
    });
    Entry { allow, peer_uids, proxy }
}

fn is_by_group(rules: &Rules) -> bool {
    matches!(&rules.whom, RuleScope::Group(group) if group != EVERYBODY)
}

/// What clients of a listener may not use, by their names and groups.
fn rules<'t>(reader: &mut Reader<'t>, node: &Node<'t>, listener: &Object<'t>) -> Vec<(Node<'t>, Rules)> {
    let Some(object) = reader.object(node, "listeners[].rules") else { return Vec::new() };
    let has = |keys: &[&str]| keys.iter().any(|key| listener.get(key).is_some());
    let mut all = Vec::new();
    for (name, place, node) in object.get("names").and_then(|node| reader.by_name(node)).unwrap_or_default() {
        if name.is_empty() || name.len() > LONGEST_NAME {
            reader.fail(&place, format!("must have 1 to {LONGEST_NAME} bytes"), None);
        } else if name == EVERYBODY {
            let hint = "write \"groups\": {\"*\": …}".to_owned();
            reader.fail(&place, "is no name; everybody is in the group \"*\"", Some(hint));
        } else if !has(&["tokens_file", "identity", "proxy"]) {
            let hint = "add tokens_file, identity or proxy; the group \"*\" is everybody".to_owned();
            reader.fail(&place, "is a name, and no client of this listener has one", Some(hint));
        }
        all.extend(rule(reader, &node, RuleScope::Name(name)).map(|rules| (place, rules)));
    }
    for (group, place, node) in object.get("groups").and_then(|node| reader.by_name(node)).unwrap_or_default() {
        check_group(reader, &place, &group);
        all.extend(rule(reader, &node, RuleScope::Group(group)).map(|rules| (place, rules)));
    }
    all
}

fn rule<'t>(reader: &mut Reader<'t>, node: &Node<'t>, whom: RuleScope) -> Option<Rules> {
    let object = reader.object(node, "listeners[].rules.groups.*")?;
    let (deny_methods, tools) = denied(reader, &object);
    Some(Rules { whom, deny_methods, tools })
}

/// Reports what cannot be the name of a group.
fn check_group<'t>(reader: &mut Reader<'t>, place: &Node<'t>, group: &str) {
    if group.is_empty() || group.trim() != group || group.contains(',') {
        let hint = "write it as the proxy does; a comma separates two of them".to_owned();
        reader.fail(place, format!("{group:?} cannot be the name of a group"), Some(hint));
    }
}

fn reuse_port<'t>(reader: &mut Reader<'t>, node: &Node<'t>, listen: &Listen) -> bool {
    let is_wanted = reader.boolean(node).unwrap_or_default();
    if is_wanted && listen.host_and_port().is_none() {
        let hint = "leave it out: during a restart a socket of systemd keeps the clients of a Unix socket".to_owned();
        reader.fail(node, "is for TCP ports; the file of a Unix socket belongs to one daemon", Some(hint));
    }
    is_wanted
}

fn proxy<'t>(reader: &mut Reader<'t>, node: &Node<'t>, is_unix: bool) -> Option<Proxies> {
    let object = reader.object(node, "listeners[].proxy")?;
    let Some(from) = object.get("from") else {
        let hint =
            if is_unix { "\"from\": [\"unix\"]" } else { "\"from\": [\"192.0.2.10\"], the addresses of the proxies" };
        reader.missing(&object, "from", &format!("write {hint}"));
        return None;
    };
    proxies(reader, from, is_unix)
}

fn proxies<'t>(reader: &mut Reader<'t>, from: &Node<'t>, is_unix: bool) -> Option<Proxies> {
    if !is_unix {
        return Some(Proxies::Networks(networks(reader, from)?));
    }
    let elements = reader.array(from)?;
    let names: Vec<Option<String>> = elements.iter().map(|element| reader.string(element)).collect();
    if names.iter().all(Option::is_some) && names != [Some("unix".to_owned())] {
        let hint = "write [\"unix\"], and keep others out with mode, owner or peer_uids".to_owned();
        reader.fail(from, "of a Unix socket is every client that can connect", Some(hint));
    }
    Some(Proxies::Unix)
}

fn web<'t>(
    reader: &mut Reader<'t>,
    object: &Object<'t>,
    listen: &Listen,
    pools: &[PoolConfig],
    groups: Option<Groups>,
    has_rules: bool,
) -> Option<Web> {
    let served = over_http().find(|(row, _)| object.get(row.key).is_some());
    let quoted = |row: &KindRow| format!("\"{}\"", row.key);
    if served.is_none() {
        let (web, lines) = (over_http(), KINDS.iter().filter(|row| row.web.is_none()));
        let (web, lines) = (listed(web.map(|(row, _)| quoted(row)), "or"), listed(lines.map(quoted), "or"));
        for node in keys::of_section(table::WEB).filter_map(|key| object.get(key)) {
            let hint = format!("write {web} instead of {lines}, or leave it out");
            reader.fail(node, "is for listeners over HTTP", Some(hint));
        }
    }
    if served.is_none_or(|(_, web)| !web.has_websockets) {
        let pinging = listed(over_http().filter(|(_, web)| web.has_websockets).map(|(row, _)| quoted(row)), "or");
        for node in keys::of_section(table::PINGS).filter_map(|key| object.get(key)) {
            let hint = format!("write {pinging} instead, or leave it out");
            reader.fail(node, "is for WebSocket listeners", Some(hint));
        }
    }
    let (KindRow { kind, what, .. }, served) = served?;
    if let Some(node) = object.get("idle_timeout_sec").filter(|_| !served.has_idle_timeout) {
        let hint = "use limits.session_idle_sec, which is 1800 there if it is not set".to_owned();
        let why = format!("is for clients that keep a connection; sessions of {what} outlive theirs");
        reader.fail(node, why, Some(hint));
    }
    let default = Web::of(*kind);
    let is_unix = listen.is_unix();
    let ping = number(reader, object, "ping_sec").map(|seconds| (seconds > 0).then(|| Duration::from_secs(seconds)));
    let (tokens_file, tokens) = object.get("tokens_file").and_then(|node| tokens_file(reader, node, pools)).unzip();
    let path = object.get("path").and_then(|node| web_path(reader, node, served)).unwrap_or(default.path);
    let hosts = object.get("hosts").map(|node| hosts(reader, node)).unwrap_or_default();
    let needs_name = object.get("identity").is_some() || object.get("tokens_file").is_some();
    let is_behind_proxy = ["identity", "trusted_proxies", "proxy"].iter().any(|key| object.get(key).is_some());
    let oauth = object.get("oauth").and_then(|node| {
        if served.requests.is_none() {
            reader.fail(node, "is for clients that send requests over HTTP, as those of http and acp do", None);
        } else if !needs_name {
            let hint = "add identity, or tokens_file".to_owned();
            reader.fail(node, "asks clients to sign in, and this listener lets everybody in", Some(hint));
        }
        resource(reader, node, &path, (!is_behind_proxy || !hosts.is_empty()).then_some(&hosts[..]))
    });
    Some(Web {
        kind: *kind,
        path,
        access: Policy {
            origins: object.get("origins").map(|node| origins(reader, node)).unwrap_or_default(),
            hosts,
            tokens,
            trusted_proxies: object.get("trusted_proxies").and_then(|node| proxies(reader, node, is_unix)),
            identity: object.get("identity").and_then(|node| {
                let has_proxies = object.get("trusted_proxies").is_some();
                identity(reader, node, is_unix, has_proxies, groups.is_some() || has_rules)
            }),
            groups,
            oauth: oauth.map(Arc::new),
        },
        tokens_file,
        ping: ping.unwrap_or(default.ping),
        pong_timeout: default.pong_timeout,
    })
}

/// The protected resource at this path. `hosts` are the names of the listener, if its proxies have not all that they like.
fn resource<'t>(reader: &mut Reader<'t>, node: &Node<'t>, path: &str, hosts: Option<&[String]>) -> Option<OAuth> {
    let object = reader.object(node, "listeners[].oauth")?;
    let example = format!("write \"https://bus.example{path}\", as clients do");
    let resource = match object.get("resource") {
        Some(node) => reader.string(node).filter(|url| {
            let why = address_fault(url).or_else(|| resource_fault(url, path, hosts));
            why.is_none_or(|why| {
                reader.fail(node, why, Some(example.clone()));
                false
            })
        }),
        None => {
            reader.missing(&object, "resource", &example);
            None
        }
    };
    let hint = "write \"https://login.example\", exactly as the server names itself (issuer in its metadata)";
    let servers = match object.get("authorization_servers") {
        Some(node) => {
            let servers = reader.elements(node, "must name at least one server", hint).unwrap_or_default();
            if servers.is_empty() {
                return None;
            }
            reader.strings(node, |url| {
                let why = address_fault(url)
                    .or_else(|| url.ends_with("//").then(|| format!("has a slash too many at its end: {url:?}")));
                why.map(|why| (why, Some(hint)))
            })
        }
        None => {
            reader.missing(&object, "authorization_servers", hint);
            return None;
        }
    };
    let scopes = object.get("scopes_supported").map(|node| {
        let is_scope = |scope: &str| {
            let belongs = |byte: u8| byte.is_ascii_graphic() && !b"\"\\".contains(&byte);
            !scope.is_empty() && scope.bytes().all(belongs)
        };
        reader.strings(node, |scope| {
            (!is_scope(scope)).then(|| (format!("must be a scope, without blanks and quotes, not {scope:?}"), None))
        })
    });
    Some(OAuth::new(&resource?, &servers, &scopes.unwrap_or_default()))
}

/// What of a text is no address of the web.
fn address_fault(url: &str) -> Option<String> {
    let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
    let is_url =
        rest.is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_graphic() && !b"?#\"\\".contains(&byte)));
    let authority = rest.and_then(|rest| rest.split('/').next()).unwrap_or_default();
    if !is_url {
        Some(format!("must be a URL that begins with https:// or http://, without query and fragment, not {url:?}"))
    } else if !is_host_and_port(authority) {
        Some(format!("must have a host, and nothing else but a port before its path, not {authority:?}"))
    } else {
        None
    }
}

/// Whether a text is the name or the address of a host, with a port behind it or without one, as all clients read it.
fn is_host_and_port(text: &str) -> bool {
    let (is_host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (address, port) = rest.split_once(']').unwrap_or_default();
            (address.parse::<Ipv6Addr>().is_ok(), port)
        }
        None => {
            let (name, port) = text.split_at(text.find(':').unwrap_or(text.len()));
            let belongs = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
            (!name.is_empty() && name.bytes().all(belongs), port)
        }
    };
    let is_port =
        |port: &str| port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|it| it > 0);
    is_host && (port.is_empty() || port.strip_prefix(':').is_some_and(is_port))
}

/// Why clients would refuse a resource, or nobody reach it.
fn resource_fault(url: &str, path: &str, hosts: Option<&[String]>) -> Option<String> {
    let (origin, own) = oauth::split(url);
    let host = origin.split_once("://").map_or("", |(_, host)| host);
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let is_address = name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
    let is_listed = |hosts: &[String]| hosts.iter().any(|known| known.eq_ignore_ascii_case(name));
    if url.ends_with('/') {
        Some(format!("ends with a slash, and clients refuse that: {url:?}"))
    } else if !own.is_empty() && own != path {
        Some(format!("has the path {own:?}, and this listener is at {path:?}; clients refuse what is not their URL"))
    } else if !is_address && !names_this_machine(name) && hosts.is_some_and(|hosts| !is_listed(hosts)) {
        Some(format!("has the host {name:?}, which is not in hosts of this listener"))
    } else {
        None
    }
}

fn identity<'t>(
    reader: &mut Reader<'t>,
    node: &Node<'t>,
    is_unix: bool,
    has_proxies: bool,
    has_groups: bool,
) -> Option<Identity> {
    let object = reader.object(node, "listeners[].identity")?;
    let example = "write \"header\": \"X-Forwarded-User\", or what the proxy calls it";
    let header = match object.get("header") {
        Some(node) => header_name(reader, node, example),
        None => {
            reader.missing(&object, "header", example);
            None
        }
    };
    let own = object.get("trusted_proxies");
    if own.is_none() && !has_proxies {
        let from = if is_unix { "[\"unix\"]" } else { "[\"192.0.2.10\"], the addresses of the proxies" };
        reader.missing(&object, "trusted_proxies", &format!("write \"trusted_proxies\": {from}"));
    }
    let trusted_proxies = own.and_then(|node| proxies(reader, node, is_unix));
    let example = "write \"groups_header\": \"X-Forwarded-Groups\", or what the proxy calls it";
    let groups_header = object.get("groups_header").and_then(|node| header_name(reader, node, example));
    if let (Some(node), false) = (object.get("groups_header"), has_groups) {
        let hint = "write \"pools\": {\"GROUP\": [\"POOL\"]} or \"rules\": {\"groups\": {\"GROUP\": …}} in the listener, or leave \
                    it out";
        reader.fail(node, "is for pools or rules by group, and this listener has none", Some(hint.to_owned()));
    }
    if let (Some(groups), Some(name)) = (&groups_header, &header)
        && groups.eq_ignore_ascii_case(name)
    {
        reader.fail(node, "has one header for names and for groups", None);
    }
    Some(Identity { header: header?.into(), groups_header: groups_header.map(Into::into), trusted_proxies })
}

/// The name of a field that a proxy may set.
fn header_name<'t>(reader: &mut Reader<'t>, node: &Node<'t>, hint: &str) -> Option<String> {
    let name = reader.string(node)?;
    let Some(why) = header_fault(&name) else { return Some(name) };
    reader.fail(node, why, Some(hint.to_owned()));
    None
}

fn web_path<'t>(reader: &mut Reader<'t>, node: &Node<'t>, served: &kinds::Web) -> Option<String> {
    let path = reader.string(node)?;
    let is_path = path.starts_with('/') && path.bytes().all(|byte| byte.is_ascii_graphic() && !b"?#".contains(&byte));
    let example = served.path;
    if !is_path {
        let hint = format!("write it as it is in the URL, as in {example:?}");
        reader.fail(node, format!("must be a path without blanks and query, not {path:?}"), Some(hint));
    } else if served.has_paths_of_pools && path.ends_with('/') {
        let hint = format!("write {example:?}, and the pools are at {example}/POOL");
        reader.fail(
            node,
            format!("must not end with a slash, for one follows before the id of a pool: {path:?}"),
            Some(hint),
        );
    } else if path == HEALTH {
        reader.fail(node, format!("{HEALTH} is where balancers ask"), None);
    }
    is_path.then_some(path)
}

fn origins<'t>(reader: &mut Reader<'t>, node: &Node<'t>) -> Vec<String> {
    let hint = "write \"https://app.example\" or \"http://localhost:8080\", without a slash at the end; \"*\" is every page \
                there is";
    let origins = reader.strings(node, |origin| {
        let host = origin.split_once("://").map(|(_, host)| host);
        let is_origin = host.is_some_and(|host| !host.is_empty() && !host.contains(['/', '?', '#']));
        let is_good = is_origin || origin == "*" || origin == "null";
        (!is_good).then(|| (format!("must be an origin, not {origin:?}"), Some(hint)))
    });
    origins.into_iter().map(|origin| origin.to_ascii_lowercase()).collect()
}

fn hosts<'t>(reader: &mut Reader<'t>, node: &Node<'t>) -> Vec<String> {
    let hint = "write \"bus.example\", without scheme, port and path; addresses and localhost need not be listed";
    let hosts = reader.strings(node, |host| {
        let belongs = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        let is_name = !host.is_empty() && host.bytes().all(belongs);
        (!is_name).then(|| (format!("must be the name of a host, not {host:?}"), Some(hint)))
    });
    hosts.into_iter().map(|host| host.to_ascii_lowercase()).collect()
}

fn tokens_file<'t>(reader: &mut Reader<'t>, node: &Node<'t>, pools: &[PoolConfig]) -> Option<(PathBuf, Tokens)> {
    let path = reader.string(node)?;
    let ids: Vec<&str> = pools.iter().map(|pool| pool.core.id.as_str()).collect();
    let read = small_file(&path).and_then(|bytes| String::from_utf8(bytes).map_err(|_| "is not UTF-8".to_owned()));
    let tokens = read.and_then(|text| Tokens::parse(&text, &ids));
    match &tokens {
        Ok(tokens) if tokens.is_empty() => {
            let hint = "write a line NAME:TOKEN for each client; make a token with: openssl rand -hex 32".to_owned();
            reader.fail(node, format!("{path:?} has no token, so no client would be admitted"), Some(hint));
        }
        Ok(_) => {}
        Err(why) => reader.fail(node, format!("the tokens file {path:?}: {why}"), None),
    }
    Some((path.into(), tokens.unwrap_or_default()))
}

fn networks<'t>(reader: &mut Reader<'t>, node: &Node<'t>) -> Option<Vec<Network>> {
    let hint = "write \"0.0.0.0/0\" and \"::/0\" for all clients";
    let elements = reader.elements(node, "must name at least one network", hint)?;
    let mut networks = Vec::with_capacity(elements.len());
    for element in &elements {
        let Some(text) = reader.string(element) else { continue };
        match Network::parse(&text) {
            Ok(network) => networks.push(network),
            Err(_) if text == "unix" => {
                reader.fail(element, "is for listeners on a Unix socket; a TCP port has addresses", None);
            }
            Err(why) => reader.fail(element, why, None),
        }
    }
    Some(networks)
}

fn user_ids<'t>(reader: &mut Reader<'t>, node: &Node<'t>) -> Option<Vec<u32>> {
    let hint = "leave it out for every user who can open the socket";
    let elements = reader.elements(node, "must name at least one user", hint)?;
    let mut users = Vec::with_capacity(elements.len());
    for element in &elements {
        if element.is_number() {
            users.extend(reader.integer(element, 0..=MAX_ID.into()).map(|id| id as u32));
        } else if let Some(name) = reader.string(element) {
            users.extend(reader.found(element, users::user(&name)));
        }
    }
    Some(users)
}

/// `user`, `user:group` or `:group`, each a name or a number, as chown(1) takes them.
fn owner<'t>(reader: &mut Reader<'t>, node: &Node<'t>) -> Option<Owner> {
    let text = reader.string(node)?;
    let (user, group) = match text.split_once(':') {
        Some((user, group)) => (user, Some(group)),
        None => (text.as_str(), None),
    };
    if group == Some("") || user.is_empty() && group.is_none() {
        let hint = "write \"user\", \"user:group\" or \":group\", with names or numbers".to_owned();
        reader.fail(node, format!("must name an owner, not {text:?}"), Some(hint));
        return None;
    }
    let user = if user.is_empty() { None } else { Some(reader.found(node, users::user(user))?) };
    let group = match group {
        Some(group) => Some(reader.found(node, users::group(group))?),
        None => None,
    };
    Some(Owner { user, group })
}

fn pool_index<'t>(reader: &mut Reader<'t>, node: &Node<'t>, pools: &[PoolConfig]) -> Option<usize> {
    let id = reader.string(node)?;
    let index = pools.iter().position(|pool| pool.core.id == id);
    if index.is_none() {
        let ids: Vec<&str> = pools.iter().map(|pool| pool.core.id.as_str()).collect();
        let hint = match keys::nearest(&id, &ids) {
            Some(name) => format!("did you mean \"{name}\"?"),
            None => format!("the pools are {}", ids.join(", ")),
        };
        reader.fail(node, format!("there is no pool {id:?}"), Some(hint));
    }
    index
}

/// The pools that a listener offers, and those of its groups if it has some.
fn offered<'t>(reader: &mut Reader<'t>, node: &Node<'t>, pools: &[PoolConfig]) -> (Option<Vec<usize>>, Option<Groups>) {
    if !node.is_object() {
        return (pool_indexes(reader, node, pools), None);
    }
    let (mut all, mut groups, mut good) = (Vec::new(), Vec::new(), true);
    for (group, _, element) in reader.members(node, |key| key == "_comment").unwrap_or_default() {
        check_group(reader, &element, &group);
        let Some(indexes) = pool_indexes(reader, &element, pools) else {
            good = false;
            continue;
        };
        groups.push((group.into(), indexes.iter().map(|pool| PoolId::at(*pool)).collect()));
        indexes.into_iter().for_each(|pool| {
            if !all.contains(&pool) {
                all.push(pool);
            }
        });
    }
    if good && groups.is_empty() {
        reader.fail(node, "must name at least one group", Some("write {\"GROUP\": [\"POOL\"]}".to_owned()));
        good = false;
    }
    (good.then_some(all), Some(Groups(groups)))
}

/// None if any of them is wrong, so that consequential errors are not reported as well.
fn pool_indexes<'t>(reader: &mut Reader<'t>, node: &Node<'t>, pools: &[PoolConfig]) -> Option<Vec<usize>> {
    let elements = reader.elements(node, "must name at least one pool", "leave it out for all pools")?;
    let mut indexes = Vec::with_capacity(elements.len());
    let mut good = !elements.is_empty();
    for element in &elements {
        match pool_index(reader, element, pools) {
            Some(index) if indexes.contains(&index) => {
                reader.fail(element, format!("{:?} is named twice", pools[index].core.id), None);
            }
            Some(index) => indexes.push(index),
            None => good = false,
        }
    }
    good.then_some(indexes)
}

fn max_connections<'t>(reader: &mut Reader<'t>, node: &Node<'t>) -> MaxConnections {
    if !node.is_object() {
        let total = reader.integer(node, keys::range("listeners[]", "max_connections")).map(|value| value as usize);
        return MaxConnections { total, per_source: None };
    }
    let Some(object) = reader.object(node, "listeners[].max_connections") else {
        return MaxConnections::default();
    };
    let count = |reader: &mut Reader<'t>, key| number(reader, &object, key).map(|value| value as usize);
    let (total, per_source) = (count(reader, "total"), count(reader, "per_source"));
    if ["total", "per_source"].iter().all(|key| object.get(key).is_none()) {
        let hint = "write a number, or {\"total\": 100, \"per_source\": 10}".to_owned();
        reader.fail(node, "needs total or per_source", Some(hint));
    }
    if let (Some(total), Some(per_source), Some(node)) = (total, per_source, object.get("per_source"))
        && per_source > total
    {
        reader.fail(node, format!("must be at most total, which is {total}, not {per_source}"), None);
    }
    MaxConnections { total, per_source }
}

fn listen<'t>(reader: &mut Reader<'t>, object: &Object<'t>) -> Option<(Node<'t>, Listen)> {
    let mode = object.get("mode").map(|node| (node, socket_mode(reader, node)));
    let owner = object.get("owner").map(|node| (node, owner(reader, node)));
    let keys = KINDS.map(|row| row.key);
    let mut kinds = KINDS.iter().filter_map(|row| Some((row.kind, object.get(row.key)?)));
    let (kind, node) = match (kinds.next(), kinds.next()) {
        (Some(one), None) => one,
        (None, _) => {
            let web = listed(over_http().map(|(row, _)| format!("\"{}\"", row.key)), "or");
            let hint = format!(
                "write \"tcp\": \"127.0.0.1:9000\", \"unix\": \"/run/stdio_bus.sock\", or {web} with \"127.0.0.1:9000\""
            );
            reader.fail(&object.node, format!("needs {}", listed(keys, "or")), Some(hint));
            return None;
        }
        _ => {
            let hint = "make a listener of each".to_owned();
            reader.fail(&object.node, format!("has more than one of {}", listed(keys, "and")), Some(hint));
            return None;
        }
    };
    let text = reader.string(node)?;
    let address = if kind.web().is_some() && text.starts_with("unix:") {
        Address::from_url(&text)
    } else {
        let path = object.get("path").filter(|_| kind.web().is_some() && text.contains("://"));
        let path = path.and_then(|path| reader.string(path));
        Address::listened(kind, &text, path.as_deref())
    };
    let mut listen = Listen::from(reader.found(node, address)?);
    set_mode(reader, &mut listen, mode);
    if let Some((node, given)) = owner {
        match listen.file_mut() {
            Ok((_, owner)) => *owner = given.unwrap_or(*owner),
            Err(NoFile::Abstract) => reader.fail(node, "is for socket files; an abstract name has none", None),
            Err(NoFile::Port) => reader.fail(node, "is for the file of a Unix socket; a TCP port has none", None),
        }
    }
    Some((node.clone(), listen))
}
