//! What each path means: an answer that can be given at once, or an action.

use serde_json::json;

use super::access::{Origin, may_act};
use super::metrics::{self, Metrics};
use super::request::Request;
use super::response::{JSON, Response};
use super::tables::{self, Object, Table};
use super::view::View;
use super::{health, page, status};
use crate::bus::port::Input;
use crate::bus::readiness::Readiness;
use crate::config::{LEVELS, Token};
use crate::http1::{Method, Status};
use crate::shell::log;
use crate::shell::outcomes::Outcome;

const READ: &str = "GET, HEAD, OPTIONS";
const ACT: &str = "POST, OPTIONS";

/// What is done beside the answer.
#[derive(Debug, Default)]
pub(super) enum Act {
    #[default]
    Nothing,
    /// It is an affair of the core.
    Tell(Input),
    /// The configuration is read again.
    Reload { is_dry_run: bool },
}

/// What a path leads to, and with that which right it needs: whoever can connect may read, and to act takes more
/// ([`may_act`]).
#[derive(Clone, Copy)]
enum Route {
    Read(fn(&View<'_>, &Request) -> Response),
    Act(fn(&View<'_>, &Request) -> Result<Done, Response>),
}

/// What is done, and what is said of it.
type Done = (Act, String);

/// All paths but those of the tables, which are read.
const ROUTES: &[(&str, Route)] = &[
    ("/", Route::Read(|_, _| page::page())),
    ("/healthz", Route::Read(|_, _| Response::text(Status::Ok, "alive"))),
    ("/readyz", Route::Read(health::ready)),
    ("/metrics", Route::Read(|view, _| Response::pieces(metrics::KIND, Metrics::new(view)))),
    ("/status.json", Route::Read(|_, _| Response::pieces(JSON, status::status()))),
    ("/reload.json", Route::Read(|view, _| Response::whole(JSON, reloaded(view)))),
    ("/drain", Route::Act(drain)),
    ("/kill-client", Route::Act(kill_client)),
    ("/restart-worker", Route::Act(restart_worker)),
    ("/restart-pool", Route::Act(restart_pool)),
    ("/reload", Route::Act(reload)),
    ("/log-level", Route::Act(set_log_level)),
];

fn route_of(path: &str) -> Option<Route> {
    let found = ROUTES.iter().find(|(known, _)| *known == path).map(|(_, route)| *route);
    found.or_else(|| table(path).map(|_| Route::Read(show_table)))
}

/// Where a request leads: what it is answered, and what is done.
pub(super) fn route(view: &View<'_>, request: &Request, origin: Origin, token: Option<&Token>) -> (Response, Act) {
    let route = route_of(&request.path);
    let allowed = if matches!(route, Some(Route::Act(_))) { ACT } else { READ };
    let response = match (request.method, route) {
        (_, None) if request.path != "*" => {
            Response::text(Status::NotFound, "there is nothing here; try /, /status.json, /metrics or /readyz")
        }
        (Method::Get | Method::Head, Some(Route::Read(read))) => read(view, request),
        (Method::Post, Some(Route::Act(act))) => {
            match may_act(origin, request, token).and_then(|()| act(view, request)) {
                Ok((act, text)) => return (Response::text(Status::Accepted, &text), act),
                Err(refused) => refused,
            }
        }
        // The default check of HAProxy: a balancer that is told no more than to check asks whether to send clients.
        (Method::Options, _) if ["/", "*"].contains(&request.path.as_str()) => {
            health::ready(view, request).with("Allow", READ)
        }
        (Method::Options, _) => Response::text(Status::Ok, allowed).with("Allow", allowed),
        (Method::Unknown, _) => Response::text(Status::NotImplemented, "this method is not known here"),
        _ => Response::text(Status::MethodNotAllowed, &format!("use one of {allowed}")).with("Allow", allowed),
    };
    (response, Act::Nothing)
}

fn table(path: &str) -> Option<&'static Table> {
    tables::named(path.strip_prefix('/')?.strip_suffix(".json")?)
}

fn show_table(_: &View<'_>, request: &Request) -> Response {
    match table(&request.path) {
        Some(table) => Response::pieces(JSON, Object::of(table)),
        None => Response::text(Status::NotFound, "there is no such table"),
    }
}

/// Where the last reload stands.
fn reloaded(view: &View<'_>) -> Vec<u8> {
    let Outcome { number, is_dry_run, is_over, code, lines } = &view.reloads.last;
    let outcome = json!({
        "number": number,
        "dry_run": is_dry_run,
        "over": is_over,
        "code": code,
        "lines": lines,
    });
    format!("{outcome}\n").into_bytes()
}

fn reload(view: &View<'_>, request: &Request) -> Result<Done, Response> {
    let is_dry_run = request.parameter("dry_run").is_some();
    // The one that is asked for now has the next number.
    let number = view.reloads.last.number + 1;
    Ok((Act::Reload { is_dry_run }, format!("reload {number} has begun; /reload.json says what comes of it")))
}

fn drain(view: &View<'_>, _: &Request) -> Result<Done, Response> {
    // A second wish to stop would end everything at once.
    match view.bus.readiness() {
        Readiness::Draining => Err(Response::text(Status::Ok, "the daemon drains already")),
        _ => {
            tracing::info!("the operator has the daemon drain");
            Ok((Act::Tell(Input::Drain), "the daemon drains".to_owned()))
        }
    }
}

fn required<'r>(request: &'r Request, name: &str) -> Result<&'r str, Response> {
    let missing = || Response::text(Status::BadRequest, &format!("{name} is missing: POST {}?{name}=…", request.path));
    request.parameter(name).filter(|value| !value.is_empty()).ok_or_else(missing)
}

fn kill_client(view: &View<'_>, request: &Request) -> Result<Done, Response> {
    let number = required(request, "client")?;
    let client = number.parse().ok().and_then(|number| view.bus.client_numbered(number));
    match client {
        Some(client) => Ok((Act::Tell(Input::CloseClient(client)), format!("client {number} is closed"))),
        None => Err(Response::text(Status::NotFound, &format!("there is no client {number:?}; see show clients"))),
    }
}

fn restart_worker(view: &View<'_>, request: &Request) -> Result<Done, Response> {
    let name = required(request, "worker")?;
    let found = name.rsplit_once('/').and_then(|(id, number)| {
        let pool = view.workers.pools.iter().position(|pool| pool.core.id == id)?;
        view.bus.worker_at(pool, number.parse().ok()?)
    });
    match found {
        Some(worker) => {
            let at_once = request.parameter("now").is_some();
            let how =
                if at_once { "told to stop" } else { "replaced: first another one runs, then it ends with its work" };
            Ok((Act::Tell(Input::RestartWorker { worker, at_once }), format!("worker {name} is {how}")))
        }
        None => Err(Response::text(Status::NotFound, &format!("there is no worker {name:?}; see show workers"))),
    }
}

fn restart_pool(view: &View<'_>, request: &Request) -> Result<Done, Response> {
    let id = required(request, "pool")?;
    let found = view.workers.pools.iter().position(|pool| pool.core.id == id && !pool.core.is_gone);
    match found {
        Some(pool) => {
            Ok((Act::Tell(Input::RestartPool(pool)), format!("the workers of pool {id} are replaced in turn")))
        }
        None => Err(Response::text(Status::NotFound, &format!("there is no pool {id:?}; see show pools"))),
    }
}

fn set_log_level(_: &View<'_>, request: &Request) -> Result<Done, Response> {
    let name = required(request, "level")?;
    let unknown = || format!("{name:?} is no level; write debug, info, warn or error");
    let (_, level) = LEVELS
        .iter()
        .find(|(known, _)| *known == name)
        .ok_or_else(|| Response::text(Status::BadRequest, &unknown()))?;
    log::set_level(*level);
    tracing::info!("the operator sets the level of the log to {name}");
    Ok((Act::Nothing, format!("the log has level {name} now")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What an operator's command does stands in the table as an action, and what anybody may read as something to read: a
    /// command that is forgotten here would be refused to all, and one that stands here as something to read acts for all.
    #[test]
    fn each_path_needs_the_right_that_it_should() {
        let acts: Vec<&str> =
            ROUTES.iter().filter(|(_, route)| matches!(route, Route::Act(_))).map(|(path, _)| *path).collect();
        assert_eq!(acts, ["/drain", "/kill-client", "/restart-worker", "/restart-pool", "/reload", "/log-level"]);
        for (path, route) in ROUTES {
            assert_eq!(ROUTES.iter().filter(|(other, _)| other == path).count(), 1, "{path} stands there once");
            // What is read has a name of something, and what acts has a verb.
            let is_read = path.ends_with(".json") || ["/", "/healthz", "/readyz", "/metrics"].contains(path);
            assert_eq!(matches!(route, Route::Read(_)), is_read, "{path}");
        }
        for table in ["clients", "workers", "pools", "sessions", "pending", "waiting", "limits", "errors", "listeners"]
        {
            assert!(matches!(route_of(&format!("/{table}.json")), Some(Route::Read(_))), "{table}");
        }
    }
}
