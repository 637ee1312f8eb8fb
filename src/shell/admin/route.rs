//! What each path means: an answer that can be given at once, or an action.

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

const READ: &str = "GET, HEAD, OPTIONS";
const ACT: &str = "POST, OPTIONS";

/// Where a request leads: what it is answered, and what the core is told before that.
pub(super) fn route(
    view: &View<'_>,
    request: &Request,
    origin: Origin,
    token: Option<&Token>,
) -> (Response, Option<Input>) {
    let (get, post) = (get(&request.path), post(&request.path));
    let allowed = if post.is_some() { ACT } else { READ };
    let response = match (request.method, get, post) {
        (_, None, None) if request.path != "*" => {
            Response::text(Status::NotFound, "there is nothing here; try /, /status.json, /metrics or /readyz")
        }
        (Method::Get | Method::Head, Some(get), _) => get(view, request),
        (Method::Post, _, Some(post)) => match may_act(origin, request, token).and_then(|()| post(view, request)) {
            Ok((input, text)) => return (Response::text(Status::Accepted, &text), input),
            Err(refused) => refused,
        },
        // The default check of HAProxy: a balancer that is told no more than to check asks whether to send clients.
        (Method::Options, ..) if ["/", "*"].contains(&request.path.as_str()) => {
            health::ready(view, request).with("Allow", READ)
        }
        (Method::Options, ..) => Response::text(Status::Ok, allowed).with("Allow", allowed),
        (Method::Unknown, ..) => Response::text(Status::NotImplemented, "this method is not known here"),
        _ => Response::text(Status::MethodNotAllowed, &format!("use one of {allowed}")).with("Allow", allowed),
    };
    (response, None)
}

type Get = fn(&View<'_>, &Request) -> Response;

fn get(path: &str) -> Option<Get> {
    Some(match path {
        "/" => |_, _| page::page(),
        "/healthz" => |_, _| Response::text(Status::Ok, "alive"),
        "/readyz" => health::ready,
        "/metrics" => |view, _| Response::pieces(metrics::KIND, Metrics::new(view)),
        "/status.json" => |_, _| Response::pieces(JSON, status::status()),
        _ => {
            table(path)?;
            |_, request| match table(&request.path) {
                Some(table) => Response::pieces(JSON, Object::of(table)),
                None => Response::text(Status::NotFound, "there is no such table"),
            }
        }
    })
}

fn table(path: &str) -> Option<&'static Table> {
    tables::named(path.strip_prefix('/')?.strip_suffix(".json")?)
}

/// What the core is told, if it is an affair of the core, and what who asks is.
type Done = (Option<Input>, String);
type Post = fn(&View<'_>, &Request) -> Result<Done, Response>;

fn post(path: &str) -> Option<Post> {
    Some(match path {
        "/drain" => drain,
        "/kill-client" => kill_client,
        "/restart-worker" => restart_worker,
        "/log-level" => set_log_level,
        _ => return None,
    })
}

fn drain(view: &View<'_>, _: &Request) -> Result<Done, Response> {
    // A second wish to stop would end everything at once.
    match view.bus.readiness() {
        Readiness::Draining => Err(Response::text(Status::Ok, "the daemon drains already")),
        _ => {
            tracing::info!("the operator has the daemon drain");
            Ok((Some(Input::Drain), "the daemon drains".to_owned()))
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
        Some(client) => Ok((Some(Input::CloseClient(client)), format!("client {number} is closed"))),
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
        Some(worker) => Ok((Some(Input::RestartWorker(worker)), format!("worker {name} is replaced"))),
        None => Err(Response::text(Status::NotFound, &format!("there is no worker {name:?}; see show workers"))),
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
    Ok((None, format!("the log has level {name} now")))
}
