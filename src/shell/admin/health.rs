//! Liveness and readiness: one line of text with the reason, and a status that load balancers understand. 503 takes the
//! daemon out, and 404 keeps new clients away and lets the others go on (`http-check disable-on-404` of HAProxy). Where a
//! balancer ends the connections of a daemon that is down, `unready=404` says 404 for both: then only a daemon that
//! answers nothing is down. `unresponsive=404` says it only where all workers are unresponsive, since they may be at a long work.

use super::request::AdminRequest;
use super::response::Response;
use super::view::View;
use crate::bus::readiness::Readiness;
use crate::http1::Status;

/// `/readyz`, optionally for a pool or a listener.
pub(super) fn ready(view: &View<'_>, request: &AdminRequest) -> Response {
    let readiness = match asked(view, request) {
        Ok(readiness) => readiness,
        Err(why) => return Response::text(Status::BadRequest, &why),
    };
    let (status, what) = match readiness {
        Readiness::Ready => {
            let failures = (0..view.workers.pools.len()).filter_map(|pool| view.bus.view().rollout_failure(pool));
            let asleep = request.parameter("pool").filter(|id| is_asleep(view, id)).map(|_| "the pool is asleep");
            // Clients are served, but an operator should look at these.
            let all: Vec<_> = std::iter::once("ready").chain(asleep).chain(failures).collect();
            return Response::text(Status::Ok, &all.join("; "));
        }
        Readiness::NotReady(_) => (replaced(request, &[UNREADY]), "not ready"),
        Readiness::Unresponsive(_) => (replaced(request, &[UNREADY, UNRESPONSIVE]), "not ready"),
        Readiness::Full(_) => (Status::NotFound, "full"),
        Readiness::Paused(_) => (Status::NotFound, "paused"),
        Readiness::Draining => (Status::NotFound, "draining"),
    };
    Response::text(status, &format!("{what}: {}", readiness.reason().unwrap_or("the daemon shuts down")))
}

/// The parameter that replaces the status 503.
const UNREADY: &str = "unready";
/// The one that replaces it if it is only about unresponsive workers.
const UNRESPONSIVE: &str = "unresponsive";

/// 503, or 404 where the question has one of these parameters.
fn replaced(request: &AdminRequest, by: &[&str]) -> Status {
    if by.iter().any(|name| request.parameter(name).is_some()) { Status::NotFound } else { Status::Unavailable }
}

/// The readiness that is asked for, or what is wrong with the question.
fn asked(view: &View<'_>, request: &AdminRequest) -> Result<Readiness, String> {
    if let Some((name, _)) =
        request.query.iter().find(|(name, _)| !["pool", "listener", UNREADY, UNRESPONSIVE].contains(&&**name))
    {
        return Err(format!(
            "{name:?} is not known here; write ?pool=ID, ?listener=N or ?listener=ADDRESS, and unready=404 or \
             unresponsive=404 beside it"
        ));
    }
    if let Some(name) =
        [UNREADY, UNRESPONSIVE].iter().find(|name| request.parameter(name).is_some_and(|to| to != "404"))
    {
        return Err(format!("{name} says which status replaces 503, and that can only be 404"));
    }
    match (request.parameter("pool"), request.parameter("listener")) {
        (Some(_), Some(_)) => Err("name a pool or a listener, and not both".to_owned()),
        (None, None) => Ok(view.bus.view().readiness()),
        (Some(id), None) => {
            let pool = view.workers.pools.iter().position(|pool| pool.core.id == id);
            pool.and_then(|pool| view.bus.view().pool_readiness(pool)).ok_or_else(|| no_pool(view, id))
        }
        (None, Some(name)) => {
            let listener = listener_called(view, name);
            listener.and_then(|at| view.bus.view().listener_readiness(at)).ok_or_else(|| no_listener(view, name))
        }
    }
}

/// The listener that an operator calls so: by an address, or by its number in the order of the configuration.
pub(super) fn listener_called(view: &View<'_>, name: &str) -> Option<usize> {
    let mut all = view.order.iter().enumerate();
    all.find(|(number, at)| view.places[**at].is_called(name) || number.to_string() == name).map(|(_, at)| *at)
}

/// Whether the pool with this id has no workers until a line needs one.
fn is_asleep(view: &View<'_>, id: &str) -> bool {
    let pool = view.workers.pools.iter().position(|pool| pool.core.id == id);
    pool.is_some_and(|pool| view.bus.view().is_asleep(pool))
}

fn no_pool(view: &View<'_>, id: &str) -> String {
    let ids: Vec<&str> = view.workers.pools.iter().map(|pool| pool.core.id.as_str()).collect();
    format!("there is no pool {id:?}; the pools are {}", ids.join(", "))
}

pub(super) fn no_listener(view: &View<'_>, name: &str) -> String {
    let all = view.order.iter().enumerate();
    let all: Vec<String> = all.map(|(number, at)| format!("{number} ({})", view.places[*at].asked)).collect();
    format!("there is no listener {name:?}; the listeners are {}", all.join(", "))
}
