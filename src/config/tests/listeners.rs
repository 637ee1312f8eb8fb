//! Listeners: their addresses, access, and pools.

use super::*;
use crate::access::{Groups, Identity, Tokens};
use crate::address::Address;
use crate::bus::port::PoolId;
use crate::bus::settings::{RuleScope, Rules, ToolRules};

#[test]
fn a_websocket_listener_has_its_terms() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("tokens");
    fs::write(&file, "alice:0123456789abcdef a\n").expect("a file");
    let listener = |members: &str| good(&top(&format!(r#","listeners":[{{{members}}}]"#))).listeners.remove(0);
    let plain = listener(r#""ws":"127.0.0.1:0""#);
    assert_eq!(plain.listen, Listen::Tcp { host: "127.0.0.1".to_owned(), port: 0 });
    assert_eq!((plain.web.clone(), plain.address()), (Some(Web::default()), "ws://127.0.0.1:0/acp".to_owned()));
    let full = listener(&format!(
        r#""ws":"[::1]:9000","path":"/a/b","origins":["https://App.example","*"],"hosts":["Bus.example"],"tokens_file":"{}",
           "trusted_proxies":["10.0.0.0/8"],"identity":{{"header":"X-User"}},"ping_sec":0"#,
        file.display()
    ));
    let web = Web {
        kind: ListenerKind::WebSocket,
        path: "/a/b".to_owned(),
        access: Policy {
            origins: vec!["https://app.example".to_owned(), "*".to_owned()],
            hosts: vec!["bus.example".to_owned()],
            tokens: Some(Tokens::parse("alice:0123456789abcdef a", &["a"]).expect("it is right")),
            trusted_proxies: Some(Proxies::Networks(networks(&["10.0.0.0/8"]))),
            groups: None,
            oauth: None,
            identity: Some(Identity { header: "X-User".into(), ..Identity::default() }),
        },
        tokens_file: Some(file),
        ping: None,
        pong_timeout: Duration::from_secs(10),
    };
    assert_eq!((full.web.as_ref(), full.address()), (Some(&web), "ws://[::1]:9000/a/b".to_owned()));
    let unix = listener(r#""ws":"unix:/run/bus.sock","mode":"0660","ping_sec":7,"trusted_proxies":["unix"]"#);
    assert_eq!(unix.address(), "ws+unix:/run/bus.sock:/acp");
    assert!(unix.web.is_some_and(|web| web.ping == Some(Duration::from_secs(7))));
}

#[test]
fn the_header_of_names_is_one_that_means_nothing_else_and_comes_from_proxies_that_are_named() {
    let with = |kind: &str, identity: &str| top(&format!(r#","listeners":[{{{kind},"identity":{identity}}}]"#));
    let proxies = |kind: &str, identity: &str| {
        let web = good(&with(kind, identity)).listeners.remove(0).web.expect("it is served over HTTP");
        web.access.identity.expect("it names clients").trusted_proxies
    };
    let ten = Some(Proxies::Networks(networks(&["10.0.0.0/8"])));
    assert_eq!(proxies(r#""ws":"a:1""#, r#"{"header":"X-User","trusted_proxies":["10.0.0.0/8"]}"#), ten);
    assert_eq!(proxies(r#""ws":"unix:/a""#, r#"{"header":"X-User","trusted_proxies":["unix"]}"#), Some(Proxies::Unix));
    assert_eq!(proxies(r#""ws":"a:1","trusted_proxies":["10.0.0.0/8"]"#, r#"{"header":"X-User"}"#), None);
    for (kind, identity, why) in [
        (r#""ws":"a:1""#, r#"{"header":"X-User"}"#, "listeners[0].identity.trusted_proxies: is missing"),
        (r#""ws":"a:1""#, r#"{"trusted_proxies":["10.0.0.1"]}"#, "listeners[0].identity.header: is missing"),
        (r#""ws":"unix:/a""#, r#"{"header":"X-User"}"#, r#"write "trusted_proxies": ["unix"]"#),
        (r#""ws":"a:1""#, r#"{"header":"X User","trusted_proxies":["10.0.0.1"]}"#, "must be the name of a header"),
        (r#""ws":"a:1""#, r#"{"header":"cookie","trusted_proxies":["10.0.0.1"]}"#, "cookie means something else"),
        (r#""ws":"a:1""#, r#"{"header":"X-User","trusted_proxies":[]}"#, "at least one network"),
        (r#""tcp":"a:1""#, r#"{"header":"X-User","trusted_proxies":["10.0.0.1"]}"#, "is for listeners over HTTP"),
    ] {
        let message = refused(&with(kind, identity));
        assert!(message.contains(why) && message.lines().count() == 1, "{message}");
    }
}

#[test]
fn pools_by_group_need_a_header_of_groups_and_the_other_way_round() {
    let with = |listener: &str| {
        format!(
            r#"{{"pools":[{{"id":"a","command":"/bin/sh","instances":1}},{{"id":"b","command":"/bin/sh","instances":1}}],
                "listeners":[{{{listener}}}]}}"#
        )
    };
    const BOTH: &str =
        r#""ws":"a:1","trusted_proxies":["10.0.0.1"],"identity":{"header":"X-User","groups_header":"X-Groups"}"#;
    let listener = good(&with(&format!(r#"{BOTH},"pools":{{"ops":["b","a"],"*":["a"]}}"#))).listeners.remove(0);
    let at = |pools: &[usize]| pools.iter().map(|pool| PoolId::at(*pool)).collect::<Vec<_>>();
    let groups = Groups(vec![("ops".into(), at(&[1, 0])), ("*".into(), at(&[0]))]);
    assert_eq!((listener.pools, listener.web.expect("it is").access.groups), (Some(vec![1, 0]), Some(groups)));
    for (listener, why) in [
        (BOTH, "listeners[0].identity.groups_header: is for pools or rules by group, and this listener has none"),
        (r#""ws":"a:1","pools":{"ops":["a"]}"#, "listeners[0].pools: are by group, and nothing says who is in one"),
        (r#""tcp":"a:1","pools":{"ops":["a"]}"#, "listeners[0].pools: are by group, and nothing says who is in one"),
        (&format!(r#"{BOTH},"pools":{{}}"#), "listeners[0].pools: must name at least one group"),
        (&format!(r#"{BOTH},"pools":{{"ops":["c"]}}"#), "there is no pool \"c\""),
        (&format!(r#"{BOTH},"pools":{{"a,b":["a"]}}"#), "cannot be the name of a group"),
    ] {
        let message = refused(&with(listener));
        assert!(message.contains(why) && message.lines().count() == 1, "{message}");
    }
    let same = BOTH.replace("X-Groups", "x-user");
    assert!(
        refused(&with(&format!(r#"{same},"pools":{{"ops":["a"]}}"#))).contains("one header for names and for groups")
    );
}

#[test]
fn rules_are_for_names_and_groups_that_clients_of_the_listener_can_have() {
    let with = |listener: &str| top(&format!(r#","listeners":[{{{listener}}}]"#));
    let rules =
        r#""rules":{"names":{"al ice":{"deny_methods":["m"],"deny_tools":["a*"]}},"groups":{"*":{"allow_tools":[]}}}"#;
    let read =
        good(&with(&format!(r#""tcp":"a:1","proxy":{{"from":["10.0.0.1"]}},{rules}"#))).settings().listeners.remove(0);
    let owned = |text: &str| vec![text.to_owned()];
    let alice = Rules {
        whom: RuleScope::Name("al ice".into()),
        deny_methods: owned("m"),
        tools: ToolRules { allow: None, deny: owned("a*") },
    };
    let tools = ToolRules { allow: Some(Vec::new()), deny: Vec::new() };
    assert_eq!(read.rules, [alice, Rules { whom: RuleScope::Group("*".into()), deny_methods: Vec::new(), tools }]);
    const HEADER: &str = r#""ws":"a:1","trusted_proxies":["10.0.0.1"],"identity":{"header":"X-User"}"#;
    for (listener, why) in [
        (
            r#""tcp":"a:1","rules":{"names":{"a":{}}}"#.into(),
            "rules.names.a: is a name, and no client of this listener has one",
        ),
        (
            r#""tcp":"a:1","rules":{"groups":{"a":{}}}"#.into(),
            "rules.groups.a: is a group, and nothing says who is in one",
        ),
        (format!(r#"{HEADER},"rules":{{"groups":{{"a":{{}}}}}}"#), "rules.groups.a: is a group, and nothing says"),
        (format!(r#"{HEADER},"rules":{{"names":{{"*":{{}}}}}}"#), "is no name; everybody is in the group"),
        (format!(r#"{HEADER},"rules":{{"names":{{"":{{}}}}}}"#), "must have 1 to 256 bytes"),
        (r#""tcp":"a:1","rules":{"groups":{"*":{"deny_tools":[""]}}}"#.into(), "deny_tools[0]: must not be empty"),
        (r#""tcp":"a:1","rules":{"groups":{"*":{"deny":["a"]}}}"#.into(), "is not a known key"),
        (r#""tcp":"a:1","rules":{"groups":{"a,b":{}}}"#.into(), "cannot be the name of a group"),
        (r#""tcp":"a:1","rules":{"groups":["*"]}"#.into(), "rules.groups: must be an object"),
        (r#""tcp":"a:1","rules":{"groups":{"*":{},"*":{}}}"#.into(), "is given twice"),
    ] {
        let message = refused(&with(&listener));
        assert!(message.contains(why), "{message}");
    }
    let groups = HEADER.replace("}", r#","groups_header":"X-Groups"}"#);
    assert_eq!(good(&with(&format!(r#"{groups},"rules":{{"groups":{{"a":{{}}}}}}"#))).listeners[0].rules.len(), 1);
}

#[test]
fn rules_for_names_and_groups_that_no_token_has_are_warned_of_where_tokens_alone_say_who_somebody_is() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("tokens");
    fs::write(&file, "alice:0123456789abcdef groups=interns\n").expect("a file");
    let warnings = |more: &str| {
        let rules = r#""rules":{"names":{"alice":{},"alicf":{}},"groups":{"interns":{},"staff":{},"*":{}}}"#;
        let listener = format!(r#""ws":"a:1","tokens_file":"{}",{rules}{more}"#, file.display());
        good(&top(&format!(r#","listeners":[{{{listener}}}]"#))).rules_for_nobody()
    };
    let found = warnings("");
    assert!(
        found.len() == 2 && found[0].contains("\"alicf\" has no token") && found[1].contains("groups=staff"),
        "{found:?}"
    );
    let more = r#","trusted_proxies":["10.0.0.1"],"identity":{"header":"X-User","groups_header":"X-Groups"}"#;
    assert!(warnings(more).is_empty(), "a proxy may know them");
}

#[test]
fn a_resource_that_clients_refuse_or_do_not_reach_is_refused() {
    let with = |keys: &str, resource: &str, servers: &str| {
        let oauth = format!(r#""oauth":{{"resource":{resource:?},"authorization_servers":{servers}}}"#);
        top(&format!(r#","listeners":[{{{keys},{oauth}}}]"#))
            .replace(r#""instances":2"#, r#""instances":2,"assignment":"client""#)
    };
    const NAMED: &str = r#""http":"0.0.0.0:1","identity":{"header":"X-User","trusted_proxies":["10.0.0.1"]}"#;
    const SERVER: &str = r#"["https://login.example"]"#;
    for resource in
        ["https://bus.example/mcp", "https://bus.example", "http://127.0.0.1:9000/mcp", "http://[::1]:9/mcp"]
    {
        let web = good(&with(NAMED, resource, SERVER)).listeners.remove(0).web.expect("it is served over HTTP");
        assert!(web.access.oauth.expect("it is configured").document().contains(&format!("{resource:?}")));
    }
    let issuer = r#"["https://tenant.auth0.example/","https://b.example/application/o/x/"]"#;
    assert!(
        good(&with(NAMED, "https://bus.example", issuer)).listeners[0].web.is_some(),
        "some have a slash at the end"
    );
    let hosts = format!(r#"{NAMED},"hosts":["mcp.example"]"#);
    let tokens = r#""http":"0.0.0.0:1","tokens_file":"/dev/null""#;
    for (keys, resource, servers, why) in [
        (NAMED, "https://bus.example/mcp/", SERVER, "ends with a slash, and clients refuse that"),
        (NAMED, "https://bus.example/", SERVER, "ends with a slash"),
        (NAMED, "https://bus.example/mc", SERVER, r#"has the path "/mc", and this listener is at "/mcp""#),
        (NAMED, "https://bus.example/mcp/tools", SERVER, "clients refuse what is not their URL"),
        (&hosts, "https://bus.example/mcp", SERVER, r#"has the host "bus.example", which is not in hosts"#),
        (NAMED, "bus.example/mcp", SERVER, "must be a URL that begins with https://"),
        (NAMED, "https://bus.example/mcp?a", SERVER, "without query and fragment"),
        (NAMED, "https:///mcp", SERVER, r#"must have a host, and nothing else but a port before its path, not """#),
        (NAMED, "https://me@bus.example/mcp", SERVER, "must have a host"),
        (NAMED, "https://:9000/mcp", SERVER, "must have a host"),
        (NAMED, "https://bus.example:/mcp", SERVER, "must have a host"),
        (NAMED, "https://bus.example:65536/mcp", SERVER, "must have a host"),
        (NAMED, "https://bus.example:+1/mcp", SERVER, "must have a host"),
        (NAMED, "https://[::1/mcp", SERVER, "must have a host"),
        (NAMED, "https://[::1]9/mcp", SERVER, "must have a host"),
        (NAMED, "https://bus.example,other.example/mcp", SERVER, "must have a host"),
        (NAMED, "https://bus.example/mcp", r#"["https://login.example:x"]"#, "must have a host"),
        (NAMED, "https://bus.example/mcp", "[]", "must name at least one server"),
        (NAMED, "https://bus.example/mcp", r#"["https://login.example//"]"#, "a slash too many at its end"),
        (NAMED, "https://bus.example/mcp", r#"["login.example"]"#, "listeners[0].oauth.authorization_servers[0]"),
        (r#""http":"0.0.0.0:1""#, "http://127.0.0.1/mcp", SERVER, "this listener lets everybody in"),
        (&NAMED.replace("http\":\"0", "ws\":\"0"), "https://a", SERVER, "is for clients that send requests over HTTP"),
        (tokens, "https://bus.example/mcp", SERVER, r#"has the host "bus.example""#),
    ] {
        let message = refused(&with(keys, resource, servers));
        assert!(message.contains(why), "{resource} {servers}: {message}");
    }
}

/// A configuration with two pools, which have these additional members, and one listener.
fn with_door(a: &str, b: &str, listener: &str) -> String {
    format!(
        r#"{{"pools":[{{"id":"a","command":"/bin/sh","instances":1{a}}},{{"id":"b","command":"/bin/sh","instances":1{b}}}],
            "listeners":[{{{listener}}}]}}"#
    )
}

const DEDICATED: &str = r#","assignment":"dedicated""#;
const SHARED: &str = r#","assignment":"client""#;

#[test]
fn a_listener_for_mcp_has_its_terms() {
    let listener = |members: &str| good(&with_door(DEDICATED, SHARED, members)).listeners.remove(0);
    let plain = listener(r#""http":"127.0.0.1:0""#);
    assert_eq!(
        (plain.web.clone(), plain.address()),
        (Some(Web::of(ListenerKind::Mcp)), "http://127.0.0.1:0/mcp".to_owned())
    );
    let full = listener(
        r#""http":"[::1]:9000","path":"/a/b","origins":["https://app.example"],"hosts":["bus.example"],
           "trusted_proxies":["10.0.0.0/8"],"allow":["::/0"],"max_connections":3,"when_not_ready":"close","pool":"b""#,
    );
    let web = Web {
        path: "/a/b".to_owned(),
        access: Policy {
            origins: vec!["https://app.example".to_owned()],
            hosts: vec!["bus.example".to_owned()],
            trusted_proxies: Some(Proxies::Networks(networks(&["10.0.0.0/8"]))),
            ..Policy::default()
        },
        ..Web::of(ListenerKind::Mcp)
    };
    assert_eq!((full.web.as_ref(), full.address()), (Some(&web), "http://[::1]:9000/a/b".to_owned()));
    let unix = listener(r#""http":"unix:/run/bus.sock","mode":"0660","peer_uids":[0]"#);
    assert_eq!((unix.address(), unix.is_mcp()), ("http+unix:/run/bus.sock:/mcp".to_owned(), true));
    let is_mcp = |members: &str| good(&with_door(DEDICATED, SHARED, members)).settings().listeners[0].mcp;
    assert_eq!((is_mcp(r#""http":"a:1""#), is_mcp(r#""ws":"a:1""#), is_mcp(r#""tcp":"a:1""#)), (true, false, false));
}

#[test]
fn a_pool_offered_to_mcp_clients_needs_an_explicit_assignment() {
    let http = r#""http":"a:1""#;
    let refused = |a: &str, b: &str, listener: &str| refused(&with_door(a, b, listener));
    let message = refused("", DEDICATED, http);
    let begin = "listeners[0].http: the pool \"a\" does not say how sessions share its processes (write \"assignment\" in \
                 pools[0] of the file: \"dedicated\" gives each session a process of its own";
    assert!(
        message.contains(begin) && message.contains("loses sampling, elicitation and resource updates"),
        "{message}"
    );
    assert_eq!(message.lines().count(), 1, "{message}");
    assert_eq!(refused("", "", http).lines().count(), 2);
    let named = refused("", "", r#""http":"a:1","pool":"b""#);
    assert!(named.contains("the pool \"b\" does not say") && named.lines().count() == 1, "{named}");
    for (a, b, listener) in [
        (DEDICATED, SHARED, http),
        ("", r#","assignment":"round_robin""#, r#""http":"a:1","pools":["b"]"#),
        ("", "", r#""ws":"a:1""#),
    ] {
        assert_eq!(good(&with_door(a, b, listener)).pools.len(), 2);
    }
    let unknown = refused("", "", r#""http":"a:1","pool":"c""#);
    assert!(unknown.contains("there is no pool \"c\"") && unknown.lines().count() == 1, "{unknown}");
}

#[test]
fn a_pool_offered_to_mcp_clients_by_the_command_line_needs_an_explicit_assignment_too() {
    let http = Listen::Tcp { host: "a".to_owned(), port: 2 };
    let door = Listener { web: Some(Web::of(ListenerKind::Mcp)), ..Listener::open(http) };
    let error = good(&top("")).listen(std::slice::from_ref(&door)).expect_err("nothing says how sessions share it");
    let begin =
        "bus.json: http://a:2/mcp: the pool \"a\" does not say how sessions share its processes (write \"assignment\"";
    assert!(error.to_string().starts_with(begin), "{error}");
    let mut config = Config::embedded(Path::new("/bin/sh"));
    config.listen(&[door]).expect("the workers that are built in are all the same");
    assert!(config.listeners[0].is_mcp());
}

#[test]
fn a_pool_offered_to_mcp_clients_has_an_id_that_is_valid_in_a_url() {
    let with =
        |id: &str, listener: &str| with_door(DEDICATED, DEDICATED, listener).replacen("\"a\"", &format!("{id:?}"), 1);
    for id in ["a b", "a/b", "a%62", "é", "a?b", "..", "."] {
        let message = refused(&with(id, r#""http":"a:1""#));
        let begin = format!("listeners[0].http: the pool {id:?} cannot be part of a URL (give it an id of");
        assert!(message.contains(&begin) && message.lines().count() == 1, "{message}");
        assert_eq!(good(&with(id, r#""http":"a:1","pool":"b""#)).pools[0].core.id, id, "it is not offered");
        assert_eq!(good(&with(id, r#""ws":"a:1""#)).pools[0].core.id, id);
    }
    for id in ["a-b_c.d~1", "@scope:x", "a,b;c=d"] {
        assert_eq!(good(&with(id, r#""http":"a:1""#)).pools[0].core.id, id);
    }
}

#[test]
fn a_listener_that_requires_tokens_is_not_reported_as_open() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("tokens");
    fs::write(&file, "alice:0123456789abcdef\n").expect("a file");
    let open = |members: &str| good(&top(&format!(r#","listeners":[{{{members}}}]"#))).open_listeners().len();
    assert_eq!(open(r#""ws":"0.0.0.0:9000""#), 1);
    assert_eq!(open(&format!(r#""ws":"0.0.0.0:9000","tokens_file":"{}""#, file.display())), 0);
}

#[test]
fn settings_without_effect_are_refused() {
    for (members, why) in [
        (
            r#""tcp":"a:1","origins":[]"#,
            "listeners[0].origins: is for listeners over HTTP (write \"ws\", \"http\" or \"acp\" instead",
        ),
        (
            r#""tcp":"a:1","ping_sec":1"#,
            "listeners[0].ping_sec: is for WebSocket listeners (write \"ws\" or \"acp\" instead",
        ),
        (
            r#""http":"a:1","pool":"a","ping_sec":1"#,
            "listeners[0].ping_sec: is for WebSocket listeners (write \"ws\" or \"acp\"",
        ),
        (
            r#""http":"a:1","idle_timeout_sec":1"#,
            "listeners[0].idle_timeout_sec: is for clients that keep a connection; sessions of MCP over HTTP outlive \
             theirs \
             (use limits.session_idle_sec",
        ),
        (r#""http":"a:1","path":"mcp""#, "(write it as it is in the URL, as in \"/mcp\")"),
        (
            r#""http":"a:1","path":"/mcp/""#,
            "must not end with a slash, for one follows before the id of a pool: \"/mcp/\"",
        ),
        (r#""http":"http://a:1/x""#, "it is asked for at /mcp, not /x"),
        (r#""http":"ws://a:1/mcp""#, "listeners[0].http: write http://a:1/mcp"),
        (r#""tcp":"http://a:1/acp""#, "that is ACP over HTTP; write --acp http://a:1/acp, or \"acp\""),
        (r#""acp":"http://a:1/mcp""#, "it is asked for at /acp, not /mcp"),
        (r#""tcp":"http://a:1/mcp""#, "that is MCP over HTTP; write --http http://a:1/mcp, or \"http\""),
        (r#""ws":"a:1","tcp":"b:1""#, "has more than one of tcp, unix, ws, http and acp"),
        (r#""ws":"a:1","http":"b:1""#, "has more than one of tcp, unix, ws, http and acp"),
        (r#""ws":"a:1","path":"acp""#, "must be a path without blanks and query, not \"acp\""),
        (r#""ws":"a:1","path":"/healthz""#, "/healthz is where balancers ask"),
        (r#""ws":"a:1","hosts":["https://a.example"]"#, "must be the name of a host, not \"https://a.example\" (write"),
        (r#""ws":"a:1","hosts":["a.example:9000"]"#, "without scheme, port and path"),
        (r#""ws":"a:1","origins":["https://a.example/"]"#, "must be an origin, not \"https://a.example/\""),
        (r#""ws":"a:1","tokens_file":"/nowhere/tokens""#, "the tokens file \"/nowhere/tokens\": "),
        (
            r#""ws":"a:1","tokens_file":"/dev/null""#,
            "the tokens file \"/dev/null\": cannot be used: it is no regular file",
        ),
        (r#""ws":"a:1","trusted_proxies":["unix"]"#, "is for listeners on a Unix socket"),
        (r#""ws":"unix:","pool":"a""#, "the socket's path is empty"),
    ] {
        let refused = refused(&top(&format!(r#","listeners":[{{{members}}}]"#)));
        assert!(refused.contains(why), "{members}: {refused}");
    }
}

#[test]
fn a_listener_has_one_address_and_a_pool_that_exists() {
    let with = |listener: &str| top(&format!(r#","listeners":[{listener}]"#));
    let cases = [
        (r#"{}"#, "listeners[0]: needs tcp, unix, ws, http or acp"),
        (r#"{"tcp":"a:1","unix":"b"}"#, "listeners[0]: has more than one of tcp, unix, ws, http and acp"),
        (r#"{"tcp":":x"}"#, "listeners[0].tcp: the port must be a number"),
        (r#"{"unix":""}"#, "listeners[0].unix: the socket's path is empty"),
        (r#"{"tcp":"a:1","pool":"b"}"#, "listeners[0].pool: there is no pool \"b\""),
        (r#"{"tcp":"a:1","mode":"0600"}"#, "a TCP port has none"),
        (r#"{"unix":"@a","mode":"0600"}"#, "an abstract name has none"),
        (r#"{"unix":"@"}"#, "the abstract name is empty"),
        (r#"{"unix":"b","mode":"600x"}"#, "must be octal permissions"),
        (r#"{"unix":"b","mode":"1777"}"#, "must be octal permissions"),
        (r#"{"unix":"b","mode":600}"#, "listeners[0].mode: must be a string"),
        (r#"{"tcp":"a:1"},{"tcp":"a:1"}"#, "listeners[1].tcp: tcp://a:1 is listened on already"),
        (r#"{"unix":"b"},{"unix":"b","mode":"0660"}"#, "unix:b is listened on already"),
    ];
    for (listener, expected) in cases {
        let message = refused(&with(listener));
        assert!(message.contains(expected), "{listener}: {message}");
    }
    assert_eq!(good(&with(r#"{"tcp":"a:0"},{"tcp":"a:0"}"#)).listeners.len(), 2);
}

#[test]
fn a_listener_offers_the_pools_it_names_or_its_own_or_all() {
    let pools = |listener: &str| {
        let text = format!(
            r#"{{"pools":[{{"id":"a","command":"/bin/sh","instances":1}},{{"id":"b","command":"/bin/sh","instances":1}}],
                "listeners":[{{"unix":"x"{listener}}}]}}"#
        );
        read(&text).map(|config| (config.listeners[0].pool, config.listeners[0].pools.clone()))
    };
    assert_eq!(pools(""), Ok((None, None)));
    assert_eq!(pools(r#","pool":"b""#), Ok((Some(1), Some(vec![1]))), "its own and no other");
    assert_eq!(pools(r#","pools":["b"]"#), Ok((None, Some(vec![1]))));
    assert_eq!(pools(r#","pool":"a","pools":["b","a"]"#), Ok((Some(0), Some(vec![1, 0]))));
    let cases = [
        (r#","pools":[]"#, "listeners[0].pools: must name at least one pool (leave it out for all pools)"),
        (r#","pools":"a""#, "listeners[0].pools: must be an array"),
        (r#","pools":["a","c"]"#, "listeners[0].pools[1]: there is no pool \"c\""),
        (r#","pools":["a","a"]"#, "listeners[0].pools[1]: \"a\" is named twice"),
        (r#","pool":"b","pools":["a"]"#, "listeners[0].pool: \"b\" is not among the pools of this listener (add \"b\""),
    ];
    for (listener, expected) in cases {
        let message = pools(listener).expect_err("must be refused").to_string();
        assert!(message.contains(expected), "{listener}: {message}");
        assert_eq!(message.lines().count(), 1, "{message}");
    }
}

#[test]
fn a_listener_limits_connections_in_total_or_by_source() {
    let with = |value: &str| top(&format!(r#","listeners":[{{"unix":"x","max_connections":{value}}}]"#));
    let counts = |value: &str| good(&with(value)).listeners[0].max_connections;
    assert_eq!(counts("1024"), MaxConnections { total: Some(1024), per_source: None });
    assert_eq!(counts(r#"{"per_source":4,"_":1}"#), MaxConnections { total: None, per_source: Some(4) });
    let cases = [
        ("0", "listeners[0].max_connections: must be at least 1, not 0"),
        ("1025", "listeners[0].max_connections: must be at most 1024, not 1025"),
        ("\"4\"", "listeners[0].max_connections: must be a whole number from 1 to 1024, not a string"),
        ("{}", "listeners[0].max_connections: needs total or per_source"),
        (r#"{"total":0}"#, "listeners[0].max_connections.total: must be at least 1, not 0"),
        (r#"{"per_sorce":4}"#, "max_connections.per_sorce: is not a known key (did you mean \"per_source\"?)"),
        (r#"{"total":2,"per_source":3}"#, "max_connections.per_source: must be at most total, which is 2, not 3"),
    ];
    for (value, expected) in cases {
        let message = refused(&with(value));
        assert!(message.contains(expected), "{value}: {message}");
    }
    assert!(refused(&top(r#","per_source":4"#)).contains("belongs under listeners[].max_connections"));
}

#[test]
fn each_kind_of_listener_has_its_own_access_settings() {
    let with = |listener: &str| top(&format!(r#","listeners":[{{{listener}}}]"#));
    let cases = [
        (
            r#""tcp":"a:1","allow":["10.0.0.1/8"]"#,
            "listeners[0].allow[0]: 10.0.0.1 has bits beyond the first 8; write 10",
        ),
        (r#""tcp":"a:1","allow":["home"]"#, "listeners[0].allow[0]: \"home\" is not a network; write 10.0.0.0/8"),
        (r#""tcp":"a:1","allow":[]"#, "listeners[0].allow: must name at least one network (write \"0.0.0.0/0\" and"),
        (r#""tcp":"a:1","allow":"::/0""#, "listeners[0].allow: must be an array"),
        (r#""unix":"b","allow":["::/0"]"#, "listeners[0].allow: is for network addresses; clients of a Unix"),
        (r#""tcp":"a:1","peer_uids":[0]"#, "listeners[0].peer_uids: is for users of this machine; clients of a TCP"),
        (r#""unix":"b","peer_uids":[]"#, "listeners[0].peer_uids: must name at least one user (leave it out"),
        (r#""unix":"b","peer_uids":["no-one"]"#, "listeners[0].peer_uids[0]: there is no user \"no-one\" on this"),
        (r#""unix":"b","peer_uids":[-1]"#, "listeners[0].peer_uids[0]: must be at least 0, not -1"),
        (r#""unix":"b","peer_uids":[4294967295]"#, "listeners[0].peer_uids[0]: must be at most 4294967294"),
        (r#""unix":"b","owner":"no-one""#, "listeners[0].owner: there is no user \"no-one\" on this machine"),
        (r#""unix":"b","owner":":no-one""#, "listeners[0].owner: there is no group \"no-one\" on this machine"),
        (r#""unix":"b","owner":"root:""#, "listeners[0].owner: must name an owner, not \"root:\" (write \"user\""),
        (r#""unix":"b","owner":"""#, "listeners[0].owner: must name an owner, not \"\""),
        (r#""unix":"@b","owner":"root""#, "listeners[0].owner: is for socket files; an abstract name has none"),
        (r#""tcp":"a:1","owner":"root""#, "listeners[0].owner: is for the file of a Unix socket; a TCP port has none"),
    ];
    for (listener, expected) in cases {
        let message = refused(&with(listener));
        assert!(message.contains(expected), "{listener}: {message}");
    }
    let owner = |text: &str| match &good(&with(&format!(r#""unix":"b","owner":"{text}""#))).listeners[0].listen {
        Listen::Unix { owner, .. } => (owner.user, owner.group),
        other => panic!("{other}"),
    };
    assert_eq!((owner("root"), owner("5:6"), owner(":root")), ((Some(0), None), (Some(5), Some(6)), (None, Some(0))));
    let allowed = good(&with(r#""unix":"b","allow":["::/0"],"proxy":{"from":["unix"]}"#));
    assert_eq!(allowed.listeners[0].entry.allow, Some(networks(&["::/0"])));
}

#[test]
fn a_proxy_has_addresses() {
    let with = |kind: &str, proxy: &str| top(&format!(r#","listeners":[{{{kind},"proxy":{proxy}}}]"#));
    let (tcp, unix) = (r#""tcp":"a:1""#, r#""unix":"b""#);
    let cases = [
        (tcp, "true", "listeners[0].proxy: must be an object"),
        (tcp, "{}", "listeners[0].proxy.from: is missing (write \"from\": [\"192.0.2.10\"]"),
        (unix, "{}", "listeners[0].proxy.from: is missing (write \"from\": [\"unix\"])"),
        (tcp, r#"{"from":["unix"]}"#, "listeners[0].proxy.from[0]: is for listeners on a Unix socket"),
        (
            unix,
            r#"{"from":["10.0.0.5"]}"#,
            "listeners[0].proxy.from: of a Unix socket is every client that can connect",
        ),
        (
            unix,
            r#"{"from":[]}"#,
            "listeners[0].proxy.from: of a Unix socket is every client that can connect (write [\"unix\"]",
        ),
        (tcp, r#"{"from":["::1"],"timeout":5}"#, "listeners[0].proxy.timeout: is not a known key"),
    ];
    for (kind, proxy, expected) in cases {
        let message = refused(&with(kind, proxy));
        assert!(message.contains(expected), "{proxy}: {message}");
    }
    let entry = good(&with(tcp, r#"{"from":["::1"]}"#)).listeners[0].entry.clone();
    assert_eq!(entry.proxy, Some(Proxies::Networks(networks(&["::1"]))));
}

#[test]
fn a_listener_open_to_other_machines_is_reported_until_access_is_restricted() {
    let open = |listener: &str| good(&top(&format!(r#","listeners":[{listener}]"#))).open_listeners();
    for near in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "localhost:1", "[::ffff:127.0.0.1]:1"] {
        assert_eq!(open(&format!(r#"{{"tcp":"{near}"}}"#)), Vec::<String>::new(), "{near}");
    }
    for far in ["0.0.0.0:1", "[::]:1", "192.0.2.7:1", "bus.example:1"] {
        let said = open(&format!(r#"{{"tcp":"{far}"}}"#));
        assert_eq!(said.len(), 1, "{far}");
        assert!(said[0].starts_with(&format!("tcp://{far} accepts clients from everywhere")), "{said:?}");
        assert_eq!(open(&format!(r#"{{"tcp":"{far}","allow":["0.0.0.0/0","::/0"]}}"#)), Vec::<String>::new());
    }
    assert_eq!(open(r#"{"unix":"b"}"#), Vec::<String>::new());
    let admin = |listen: &str| good(&top(&format!(r#","admin":{{"listen":"{listen}"}}"#))).open_listeners();
    assert_eq!((admin("127.0.0.1:1"), admin("/a")), (vec![], vec![]));
    assert!(
        admin("[::]:1")[0].starts_with("the admin listener tcp://[::]:1 shows everyone"),
        "{:?}",
        admin("0.0.0.0:1")
    );
}

#[test]
fn a_flag_adds_a_listener_and_stdio_is_the_default() {
    let tcp = Listen::Tcp { host: "a".to_owned(), port: 1 };
    let mut config = good(&top(r#","listeners":[{"unix":"b"}]"#));
    config.listen(&[]).expect("the file has a listener");
    assert_eq!(config.listeners.len(), 1);
    config.listen(&[Listener::open(tcp.clone())]).expect("another one");
    assert_eq!(config.listeners[0].listen, tcp);
    let error = config.listen(&[Listener::open(tcp)]).expect_err("twice");
    assert!(error.to_string().contains("tcp://a:1 is among the listeners already"), "{error}");
    let mut config = good(&top(""));
    config.listen(&[]).expect("stdio is always there");
    assert_eq!(config.listeners, [Listener::open(Listen::Stdio)]);
}

#[test]
fn a_listener_without_a_preferred_pool_is_reported() {
    let two = r#""pools":[{"id":"a","command":"sh","instances":1},{"id":"b","command":"sh","instances":1}]"#;
    let listeners = r#""listeners":[{"tcp":"[::1]:1"},{"tcp":"[::1]:2","pool":"a"},{"tcp":"[::1]:3","pools":["a"]}]"#;
    let config = good(&format!("{{{two},{listeners}}}"));
    assert_eq!(
        config.settings().listeners.iter().map(|one| one.pool).collect::<Vec<_>>(),
        [None, Some(PoolId::at(0)), None]
    );
    let [message] = &config.mixed_listeners()[..] else { panic!("one listener mixes") };
    assert!(
        message.starts_with("tcp://[::1]:1: a message that names no pool") && message.contains("listeners[].pool"),
        "{message}"
    );
    assert_eq!(good(&format!("{{{two}}}")).mixed_listeners().len(), 1, "the one of the command line would");
    let shared = with_door(SHARED, SHARED, r#""http":"[::1]:1""#);
    assert_eq!(good(&shared).mixed_listeners(), Vec::<String>::new(), "each pool has a path of its own");
    let dedicated = two.replacen(r#""instances":1"#, r#""instances":1,"assignment":"dedicated""#, 1);
    assert_eq!(good(&format!("{{{dedicated}}}")).mixed_listeners(), Vec::<String>::new(), "one pool is left to choose");
}

#[test]
fn daemons_that_share_a_port_are_lame_ducks_for_a_second_unless_the_file_says_otherwise() {
    let lame_duck = |listener: &str, limits: &str| {
        good(&top(&format!(r#","limits":{{{limits}}},"listeners":[{listener}]"#))).limits.lame_duck.as_secs()
    };
    assert_eq!(lame_duck(r#"{"tcp":"a:1"}"#, ""), 0);
    assert_eq!(lame_duck(r#"{"tcp":"a:1","reuse_port":false}"#, ""), 0);
    for kind in ["tcp", "ws"] {
        let shared = format!(r#"{{"{kind}":"a:1","reuse_port":true}}"#);
        assert_eq!(lame_duck(&shared, ""), 1);
        assert_eq!(lame_duck(&shared, r#""lame_duck_sec":7"#), 7);
        assert_eq!(lame_duck(&shared, r#""lame_duck_sec":0"#), 0);
    }
}

#[test]
fn a_unix_socket_cannot_be_shared() {
    let refused = |listener: &str| refused(&top(&format!(r#","listeners":[{listener}]"#)));
    for kind in [r#""unix":"/run/a""#, r#""ws":"unix:/run/a""#, r#""unix":"@a""#] {
        let message = refused(&format!(r#"{{{kind},"reuse_port":true}}"#));
        assert!(message.contains("listeners[0].reuse_port: is for TCP ports"), "{message}");
    }
    let message = refused(r#"{"tcp":"a:1","reuse_port":1}"#);
    assert!(message.contains("listeners[0].reuse_port"), "{message}");
}

#[test]
fn every_key_of_a_listener_arrives() {
    let config = good(ALL);
    let unix = |path: &str, mode| Listener::open(Listen::Unix { path: path.into(), mode, owner: Owner::default() });
    let tcp = Listener {
        listen: Listen::Tcp { host: "::1".to_owned(), port: 9000 },
        pool: Some(0),
        pools: Some(vec![1, 0]),
        max_connections: MaxConnections { total: Some(9), per_source: Some(2) },
        idle_timeout: None,
        rules: Vec::new(),
        entry: Entry {
            allow: Some(networks(&["10.0.0.0/8", "::1"])),
            peer_uids: None,
            proxy: Some(Proxies::Networks(networks(&["192.0.2.7"]))),
        },
        closes_when_not_ready: true,
        reuse_port: true,
        web: None,
        is_gone: false,
        moved_to: Vec::new(),
    };
    let seven = MaxConnections { total: Some(7), per_source: None };
    let owner = Owner { user: Some(0), group: Some(7) };
    let bounded = Listener {
        max_connections: seven,
        idle_timeout: Some(Duration::from_secs(600)),
        entry: Entry { peer_uids: Some(vec![0, 1000]), ..Entry::default() },
        ..Listener::open(Listen::Unix { path: "/run/b".into(), mode: 0o660, owner })
    };
    let proxied = Listener { entry: Entry { proxy: Some(Proxies::Unix), ..Entry::default() }, ..unix("c", 0o600) };
    assert_eq!(config.listeners, [tcp, bounded, proxied]);
    assert_eq!(config.settings().listeners[1].entry, config.listeners[1].entry);
    let core = config.settings().listeners;
    assert_eq!(
        (core.len(), core[0].pool, core[0].pools.as_deref()),
        (3, Some(PoolId::at(0)), Some(&[PoolId::at(1), PoolId::at(0)][..]))
    );
    assert_eq!(core[0].max_connections, MaxConnections { total: Some(9), per_source: Some(2) });
}

#[test]
fn no_client_may_write_who_it_is_into_the_variables_of_its_worker() {
    let with = |header: &str, listeners: &str| {
        let pool = r#"{"id":"a","command":"sh","assignment":"dedicated","env_from":{"headers":{"#;
        format!(r#"{{"pools":[{pool}"{header}":"WHO"}}}}}}],"listeners":[{listeners}]}}"#)
    };
    let named = |header: &str, groups: &str| {
        format!(
            r#"{{"http":"127.0.0.1:1","rules":{{"groups":{{"g":{{"deny_tools":["x"]}}}}}},
            "identity":{{"header":"{header}","groups_header":"{groups}","trusted_proxies":["127.0.0.1"]}}}}"#
        )
    };
    let open = r#"{"ws":"127.0.0.1:2"}"#;
    let all = [named("X-Sso", "X-Teams"), open.to_owned()].join(",");
    for (header, listeners) in [
        ("x-forwarded-user", open),
        ("Remote-User", r#"{"acp":"127.0.0.1:2"}"#),
        ("X-Forwarded-Email", &named("X-Forwarded-User", "X-Teams")),
        ("X-SSO", &all),
        ("x-teams", &all),
    ] {
        let message = refused(&with(header, listeners));
        assert!(message.contains("any client can write") && message.contains(header), "{message}");
    }
    for (header, listeners) in [
        ("X-Forwarded-User", named("x-forwarded-user", "X-Teams")),
        ("X-Forwarded-Groups", named("X-Sso", "x-forwarded-groups")),
        ("X-Forwarded-User", r#"{"tcp":"127.0.0.1:2"}"#.to_owned()),
        ("X-Github-Token", all.clone()),
        ("X-Forwarded-Access-Token", all),
    ] {
        good(&with(header, &listeners));
    }
    let mut config = good(&with("X-Forwarded-User", ""));
    let flag = Listener::of(ListenerKind::WebSocket, Address::tcp("127.0.0.1", 2));
    let why = config.listen(&[flag]).expect_err("any client could write it").to_string();
    assert!(why.contains("any client can write X-Forwarded-User"), "{why}");
}
