//! Maps paths to answers and actions.

use serde_json::json;

use super::access::{ActionPermit, Origin, may_ask, permit_action};
use super::health::{listener_called, no_listener};
use super::listener_names::ListenerNames;
use super::metrics::{self, Metrics};
use super::request::AdminRequest;
use super::response::{JSON, Response};
use super::tables::{self, Object, Table};
use super::view::View;
use super::{health, page, status};
use crate::access::Secret;
use crate::bus::port::{Input, ListenerId, PoolId, WorkerKey};
use crate::bus::readiness::Readiness;
use crate::config::{LEVELS, LogLevel};
use crate::http1::{Method, Status};
use crate::shell::log;
use crate::shell::reload::Outcome;

const READ: &str = "GET, HEAD, OPTIONS";
const ACT: &str = "POST, OPTIONS";

/// An effect in addition to the answer.
#[derive(Debug, Default)]
pub(super) enum Act {
    #[default]
    Nothing,
    /// An input to the core.
    Dispatch(Input),
    /// Reload the configuration.
    Reload {
        is_dry_run: bool,
    },
    SetLogLevel(&'static (&'static str, LogLevel)),
}

type Reads = fn(&View<'_>, &AdminRequest) -> Response;
type Acts = fn(&View<'_>, &AdminRequest, ActionPermit) -> Result<Done, Response>;
/// The parameters of an action.
type Parameters = &'static [&'static str];

/// The target of a path, and thereby its required permission: every client that can connect may read, while an action
/// requires [`permit_action`]. There is no third kind, and so none without a check.
#[derive(Clone, Copy)]
enum Route {
    Read(Reads),
    Act(Acts, Parameters),
}

/// What a request is granted.
enum Grant {
    Read(Reads),
    Act(Acts, ActionPermit),
}

/// An action, and the message about it.
type Done = (Act, String);

/// All paths except the tables', which are read.
const ROUTES: &[(&str, Route)] = &[
    ("/", Route::Read(|_, _| page::page())),
    ("/healthz", Route::Read(|_, _| Response::text(Status::Ok, "alive"))),
    ("/readyz", Route::Read(health::ready)),
    ("/metrics", Route::Read(|view, _| Response::pieces(metrics::KIND, Metrics::new(view)))),
    ("/status.json", Route::Read(|_, _| Response::pieces(JSON, status::status()))),
    ("/reload.json", Route::Read(|view, _| Response::whole(JSON, reloaded(view)))),
    ("/drain", Route::Act(drain, &[])),
    ("/kill-client", Route::Act(kill_client, &["client"])),
    ("/restart-worker", Route::Act(restart_worker, &["worker", "now"])),
    ("/restart-pool", Route::Act(restart_pool, &["pool"])),
    ("/take-out-worker", Route::Act(take_out_worker, &["worker"])),
    ("/pause", Route::Act(pause, &["pool", "listener"])),
    ("/resume", Route::Act(resume, &["pool", "listener"])),
    ("/reload", Route::Act(reload, &["dry_run"])),
    ("/log-level", Route::Act(set_log_level, &["level"])),
];

fn route_of(path: &str) -> Option<Route> {
    let found = ROUTES.iter().find(|(known, _)| *known == path).map(|(_, route)| *route);
    found.or_else(|| table(path).map(|_| Route::Read(show_table)))
}

/// Whether a request is for an action, which has its line in the audit trail.
pub(super) fn is_action(request: &AdminRequest) -> bool {
    request.method == Method::Post && matches!(route_of(&request.path), Some(Route::Act(..)))
}

/// Routes a request: the answer, and the action; or its refusal.
pub(super) fn route(
    view: &View<'_>,
    request: &AdminRequest,
    origin: Origin,
    token: Option<&Secret>,
) -> Result<(Response, Act), Response> {
    Ok(match grant(request, origin, token)? {
        Grant::Read(read) => (read(view, request), Act::Nothing),
        Grant::Act(act, right) => {
            let (act, text) = act(view, request, right)?;
            (Response::text(Status::Accepted, &text), act)
        }
    })
}

/// What a request is granted by its path, method and origin; or its refusal.
fn grant(request: &AdminRequest, origin: Origin, token: Option<&Secret>) -> Result<Grant, Response> {
    may_ask(origin, request)?;
    let route = route_of(&request.path);
    let allowed = if matches!(route, Some(Route::Act(..))) { ACT } else { READ };
    match (request.method, route) {
        (_, None) if request.path != "*" => {
            Err(not_found("there is nothing here; try /, /status.json, /metrics or /readyz"))
        }
        (Method::Get | Method::Head, Some(Route::Read(read))) => Ok(Grant::Read(read)),
        (Method::Post, Some(Route::Act(act, parameters))) => {
            let right = permit_action(origin, request, token)?;
            understands(request, parameters)?;
            Ok(Grant::Act(act, right))
        }
        // HAProxy's default check: a balancer with a bare `check` asks whether to send clients.
        (Method::Options, _) if ["/", "*"].contains(&request.path.as_str()) => {
            Ok(Grant::Read(|view, request| health::ready(view, request).with("Allow", READ)))
        }
        (Method::Options, _) => Err(Response::text(Status::Ok, allowed).with("Allow", allowed)),
        (Method::Unknown, _) => Err(Response::text(Status::NotImplemented, "this method is not known here")),
        _ => Err(Response::text(Status::MethodNotAllowed, &format!("use one of {allowed}")).with("Allow", allowed)),
    }
}

/// Refuses an action with a parameter that it does not have, or has twice, or with a body: it would do something else
/// than was meant.
fn understands(request: &AdminRequest, parameters: Parameters) -> Result<(), Response> {
    let refuse = |why: String| Err(Response::text(Status::BadRequest, &why));
    let known = || match parameters {
        [] => format!("{} has no parameters", request.path),
        _ => format!("{} has the parameters {}", request.path, parameters.join(", ")),
    };
    if request.has_body {
        return refuse(format!("an action has no body; {}, in its query: POST {}?…", known(), request.path));
    }
    for (at, (name, _)) in request.query.iter().enumerate() {
        if !parameters.contains(&name.as_str()) {
            return refuse(format!("{name:?} is not understood; {}", known()));
        }
        if request.query[..at].iter().any(|(before, _)| before == name) {
            return refuse(format!("{name} occurs twice"));
        }
    }
    Ok(())
}

/// Whether a parameter that says yes or no says yes; one that is not there says no.
fn is_set(request: &AdminRequest, name: &str) -> Result<bool, Response> {
    match request.parameter(name) {
        None | Some("0" | "false") => Ok(false),
        Some("" | "1" | "true") => Ok(true),
        Some(other) => {
            Err(Response::text(Status::BadRequest, &format!("{name} is {other:?}; write 1 or true, 0 or false")))
        }
    }
}

fn table(path: &str) -> Option<&'static Table> {
    tables::named(path.strip_prefix('/')?.strip_suffix(".json")?)
}

fn show_table(_: &View<'_>, request: &AdminRequest) -> Response {
    match table(&request.path) {
        Some(table) => Response::pieces(JSON, Object::of(table)),
        None => not_found("there is no such table"),
    }
}

fn not_found(why: &str) -> Response {
    Response::text(Status::NotFound, why)
}

/// The state of the last reload.
fn reloaded(view: &View<'_>) -> Vec<u8> {
    let Outcome { number, is_dry_run, is_under_way, code, lines } = &view.reloads.last;
    let outcome = json!({
        "number": number,
        "dry_run": is_dry_run,
        "over": !is_under_way,
        "code": code,
        "lines": lines,
    });
    format!("{outcome}\n").into_bytes()
}

fn reload(view: &View<'_>, request: &AdminRequest, _: ActionPermit) -> Result<Done, Response> {
    let is_dry_run = is_set(request, "dry_run")?;
    // The requested reload gets the next number.
    let number = view.reloads.last.number + 1;
    Ok((Act::Reload { is_dry_run }, format!("reload {number} has begun; /reload.json says what comes of it")))
}

fn drain(view: &View<'_>, _: &AdminRequest, _: ActionPermit) -> Result<Done, Response> {
    // A second shutdown request would end everything at once.
    if view.bus.view().readiness() == Readiness::Draining {
        return Err(Response::text(Status::Ok, "the daemon drains already"));
    }
    Ok((Act::Dispatch(Input::Drain), "the daemon drains".to_owned()))
}

fn required<'r>(request: &'r AdminRequest, name: &str) -> Result<&'r str, Response> {
    let missing = || Response::text(Status::BadRequest, &format!("{name} is missing: POST {}?{name}=…", request.path));
    request.parameter(name).filter(|value| !value.is_empty()).ok_or_else(missing)
}

fn kill_client(view: &View<'_>, request: &AdminRequest, _: ActionPermit) -> Result<Done, Response> {
    let number = required(request, "client")?;
    let client = number.parse().ok().and_then(|number| view.bus.view().client_numbered(number));
    let unknown = || not_found(&format!("there is no client {number:?}; see show clients"));
    Ok((Act::Dispatch(Input::CloseClient(client.ok_or_else(unknown)?)), format!("client {number} is closed")))
}

/// Refuses once the daemon that shuts down takes no new requests: what operators do about workers, pools and listeners
/// changes nothing any more.
fn is_served(view: &View<'_>) -> Result<(), Response> {
    let why = "the daemon shuts down: nothing is restarted, taken out, paused or resumed any more";
    if view.bus.view().refuses_requests() { Err(Response::text(Status::Conflict, why)) } else { Ok(()) }
}

/// The worker that is meant.
fn worker_meant<'r>(view: &View<'_>, request: &'r AdminRequest) -> Result<(&'r str, WorkerKey), Response> {
    let name = required(request, "worker")?;
    let found = name.rsplit_once('/').and_then(|(id, number)| {
        let pool = view.workers.pools.iter().position(|pool| pool.core.id == id)?;
        view.bus.view().worker_at(pool, number.parse().ok()?)
    });
    Ok((name, found.ok_or_else(|| not_found(&no_worker(view, name)))?))
}

/// The pool that is meant, by its id.
fn pool_meant(view: &View<'_>, id: &str) -> Result<PoolId, Response> {
    let found = view.workers.pools.iter().position(|pool| pool.core.id == id && !pool.core.is_gone);
    found.map(PoolId::at).ok_or_else(|| not_found(&format!("there is no pool {id:?}; see show pools")))
}

fn restart_worker(view: &View<'_>, request: &AdminRequest, _: ActionPermit) -> Result<Done, Response> {
    let (name, worker) = worker_meant(view, request)?;
    let at_once = is_set(request, "now")?;
    let how = if at_once {
        "asked to stop"
    } else {
        "replaced: another one is started first, and then it ends once \
        its work is done"
    };
    if !at_once {
        is_served(view)?;
    }
    Ok((Act::Dispatch(Input::RestartWorker { worker, at_once }), format!("worker {name} is {how}")))
}

/// Maximum number of workers named in a refusal.
const MOST_NAMED: usize = 16;

/// Replacements have other numbers, so the existing workers are listed.
fn no_worker(view: &View<'_>, name: &str) -> String {
    let rows = tables::by_pool(view).into_iter().filter_map(|slot| view.bus.view().worker_row(view.now, slot));
    let names: Vec<_> = rows.map(|row| row.name).collect();
    let shown: Vec<String> = names.iter().take(MOST_NAMED).map(|name| tables::worker_name(view, *name)).collect();
    let there = match names.len().saturating_sub(MOST_NAMED) {
        _ if shown.is_empty() => "and none runs; see show pools".to_owned(),
        0 => format!("but {}", shown.join(", ")),
        more => format!("but {} and {more} more; see show workers", shown.join(", ")),
    };
    format!("there is no worker {name:?}, {there}")
}

fn restart_pool(view: &View<'_>, request: &AdminRequest, _: ActionPermit) -> Result<Done, Response> {
    let id = required(request, "pool")?;
    let pool = pool_meant(view, id)?;
    is_served(view)?;
    let done = match view.bus.view().is_asleep(pool) {
        true => format!("pool {id} is asleep: its next line starts workers"),
        false => format!("the workers of pool {id} are replaced in turn, and those that are missing started"),
    };
    Ok((Act::Dispatch(Input::RestartPool(pool)), done))
}

fn take_out_worker(view: &View<'_>, request: &AdminRequest, _: ActionPermit) -> Result<Done, Response> {
    let (name, worker) = worker_meant(view, request)?;
    is_served(view)?;
    if !view.bus.view().may_take_out(worker) {
        let why = format!("worker {name} ends, or is about to replace another one; see show workers");
        return Err(Response::text(Status::Conflict, &why));
    }
    let id = name.rsplit_once('/').map_or(name, |(id, _)| id);
    let done = format!(
        "worker {name} is taken out: it ends once its work is done, and is not replaced until pool {id} is resumed \
         or restarted"
    );
    Ok((Act::Dispatch(Input::TakeOutWorker(worker)), done))
}

/// What is paused or resumed.
enum Meant<'r> {
    Pool(PoolId, &'r str),
    Listener(ListenerId, String),
}

fn meant<'r>(view: &View<'_>, request: &'r AdminRequest) -> Result<Meant<'r>, Response> {
    match (request.parameter("pool"), request.parameter("listener")) {
        (Some(id), None) => Ok(Meant::Pool(pool_meant(view, id)?, id)),
        (None, Some(name)) => {
            let is_there = |at: &usize| view.bus.view().listener_readiness(*at).is_some();
            let found = listener_called(view, name).filter(is_there);
            let at = found.ok_or_else(|| not_found(&no_listener(view, name)))?;
            let number = view.order.iter().position(|other| *other == at).unwrap_or(at);
            let called = view.places.get(at).map_or(name, ListenerNames::label);
            Ok(Meant::Listener(ListenerId::at(at), format!("listener {number} ({called})")))
        }
        _ => {
            let path = &request.path;
            let text = format!("name a pool or a listener: POST {path}?pool=ID or POST {path}?listener=N");
            Err(Response::text(Status::BadRequest, &text))
        }
    }
}

fn pause(view: &View<'_>, request: &AdminRequest, _: ActionPermit) -> Result<Done, Response> {
    set_paused(view, request, true)
}

fn resume(view: &View<'_>, request: &AdminRequest, _: ActionPermit) -> Result<Done, Response> {
    set_paused(view, request, false)
}

fn set_paused(view: &View<'_>, request: &AdminRequest, is_paused: bool) -> Result<Done, Response> {
    let meant = meant(view, request)?;
    is_served(view)?;
    let (input, done) = match meant {
        Meant::Pool(pool, id) if is_paused => (
            Input::PausePool(pool),
            format!("pool {id} is paused: new requests wait until it is resumed, and pending ones continue"),
        ),
        Meant::Pool(pool, id) => (
            Input::ResumePool(pool),
            format!("pool {id} takes requests, and workers that were taken out are started again"),
        ),
        Meant::Listener(listener, name) => {
            let done = match is_paused {
                true => format!(
                    "{name} is paused: it accepts no new clients until it is resumed, and still serves \
                    the others"
                ),
                false => format!("{name} accepts new clients"),
            };
            (Input::PauseListener { listener, is_paused }, done)
        }
    };
    Ok((Act::Dispatch(input), done))
}

fn set_log_level(_: &View<'_>, request: &AdminRequest, _: ActionPermit) -> Result<Done, Response> {
    let name = required(request, "level")?;
    let unknown = || format!("{name:?} is no level; write debug, info, warn or error");
    let level = LEVELS.iter().find(|(known, _)| *known == name);
    let level = level.ok_or_else(|| Response::text(Status::BadRequest, &unknown()))?;
    let before = log::level_name();
    Ok((Act::SetLogLevel(level), format!("the log has level {name} now; it had {before}")))
}

#[cfg(test)]
mod tests {
    use super::super::request::tests::read;
    use super::super::response::AdminBody;
    use super::*;

    /// The operators' commands. A command missing here fails the test below.
    const ACTING: [&str; 9] = [
        "/drain",
        "/kill-client",
        "/restart-worker",
        "/restart-pool",
        "/take-out-worker",
        "/pause",
        "/resume",
        "/reload",
        "/log-level",
    ];

    fn reading() -> Vec<String> {
        let reads =
            ROUTES.iter().filter(|(_, route)| matches!(route, Route::Read(_))).map(|(path, _)| path.to_string());
        reads.chain(tables::columns().map(|(table, _)| format!("/{table}.json"))).collect()
    }

    #[test]
    fn each_path_requires_its_permission() {
        let acts: Vec<&str> =
            ROUTES.iter().filter(|(_, route)| matches!(route, Route::Act(..))).map(|(path, _)| *path).collect();
        assert_eq!(acts, ACTING);
        for path in reading() {
            // Readable paths are nouns, and actions are verbs.
            let is_read = path.ends_with(".json") || ["/", "/healthz", "/readyz", "/metrics"].contains(&path.as_str());
            assert!(is_read && matches!(route_of(&path), Some(Route::Read(_))), "{path}");
        }
        for (path, _) in ROUTES {
            assert_eq!(ROUTES.iter().filter(|(other, _)| other == path).count(), 1, "{path} occurs once");
        }
    }

    const SECRET: &str = "0123456789abcdef";
    const ORIGINS: [Origin; 4] = [Origin::Trusted, Origin::AnyUser, Origin::Network, Origin::Loopback];

    /// The result of a request: `read`, `act`, or the code of its refusal.
    fn asked(method: &str, path: &str, fields: &str, origin: Origin, has_token: bool) -> String {
        let token = has_token.then(|| Secret::new(SECRET.as_bytes()).expect("it is long enough"));
        let request = read(&format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n"));
        match grant(&request.expect("it is a request"), origin, token.as_ref()) {
            Ok(Grant::Read(_)) => "read".to_owned(),
            Ok(Grant::Act(..)) => "act".to_owned(),
            Err(refused) => refused.status.code().to_string(),
        }
    }

    fn bearer(secret: &str) -> String {
        format!("Authorization: Bearer {secret}\r\n")
    }

    #[test]
    fn every_action_is_refused_to_clients_that_may_only_read() {
        let wrong = bearer("0123456789abcdee");
        let pages = ["Origin: http://evil.example\r\n", "Origin: null\r\n", "Sec-Fetch-Site: cross-site\r\n"];
        for path in ACTING.into_iter().chain(["/reload?dry_run=1"]) {
            for origin in ORIGINS {
                let refused = |method: &str, fields: &str, has_token, code: &str| {
                    let came_of = asked(method, path, fields, origin, has_token);
                    assert_eq!(came_of, code, "{method} {path} from {origin:?} with {fields:?}, {has_token}");
                };
                // A page's link, image or form can do no more.
                for (method, code) in
                    [("GET", "405"), ("HEAD", "405"), ("OPTIONS", "200"), ("PUT", "405"), ("FROB", "501")]
                {
                    refused(method, &bearer(SECRET), true, code);
                }
                for page in pages {
                    refused("POST", &format!("{page}{}", bearer(SECRET)), true, "403");
                }
                if origin != Origin::Trusted {
                    refused("POST", "", true, "401");
                    refused("POST", &wrong, true, "401");
                    refused("POST", "", false, "403");
                    refused("POST", &bearer(SECRET), false, "403");
                }
                refused("POST", &bearer(SECRET), true, "act");
            }
            assert_eq!(asked("POST", path, "", Origin::Trusted, false), "act");
            let rebound = "X: y\r\nOrigin: http://localhost\r\n";
            assert_eq!(asked("POST", path, rebound, Origin::AnyUser, true), "401", "the same origin is no right");
        }
    }

    #[test]
    fn an_action_refuses_what_it_does_not_understand_and_names_what_it_does() {
        let refusal = |path: &str, fields: &str| {
            let request = read(&format!("POST {path} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n"));
            let granted = grant(&request.expect("it is a request"), Origin::Trusted, None);
            granted.err().map(|refused| {
                let AdminBody::Whole(said) = refused.body else { panic!("a refusal is a line") };
                (refused.status.code(), String::from_utf8(said).expect("text"))
            })
        };
        for path in ["/drain", "/reload?dry_run", "/restart-worker?worker=a%2F1&now=1", "/kill-client?client=1"] {
            assert_eq!(refusal(path, "Content-Length: 0\r\n"), None, "{path}");
        }
        for (path, named) in [
            ("/drain?now=1", "/drain has no parameters"),
            ("/reload?dryrun=1", "/reload has the parameters dry_run"),
            ("/restart-worker?worker=a%2F1&force=1", "worker, now"),
            ("/reload?dry_run=1&dry_run=0", "dry_run occurs twice"),
        ] {
            let (code, said) = refusal(path, "").expect("it is refused");
            assert!(code == 400 && said.contains(named), "{path}: {code} {said}");
        }
        let (code, said) = refusal("/reload", "Content-Length: 9\r\n").expect("it is refused");
        assert!(code == 400 && said.contains("has no body"), "{said}");
    }

    #[test]
    fn a_parameter_that_says_no_is_not_taken_for_a_yes() {
        let set = |query: &str| {
            let request = read(&format!("POST /reload{query} HTTP/1.1\r\nHost: localhost\r\n\r\n"));
            is_set(&request.expect("it is a request"), "dry_run").map_err(|refused| refused.status.code())
        };
        for (query, is_yes) in
            [("", false), ("?dry_run=0", false), ("?dry_run=false", false), ("?dry_run", true), ("?dry_run=1", true)]
        {
            assert_eq!(set(query), Ok(is_yes), "{query}");
        }
        assert_eq!(set("?dry_run=no"), Err(400));
    }

    #[test]
    fn every_readable_path_is_open_to_all_clients_and_never_acts() {
        for path in reading() {
            for origin in ORIGINS {
                for has_token in [false, true] {
                    for method in ["GET", "HEAD"] {
                        assert_eq!(asked(method, &path, "", origin, has_token), "read", "{method} {path} {origin:?}");
                    }
                    assert_eq!(asked("POST", &path, &bearer(SECRET), origin, has_token), "405", "{path}");
                }
            }
        }
        assert_eq!(asked("OPTIONS", "*", "", Origin::Network, true), "read");
        assert_eq!(asked("POST", "/no-such-path", &bearer(SECRET), Origin::Trusted, true), "404");
        assert_eq!(asked("POST", "/drain/", &bearer(SECRET), Origin::Trusted, true), "404");
    }
}
