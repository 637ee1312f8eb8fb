//! Liveness and readiness: one line of text with the reason, and a status that load balancers understand. 503 takes the
//! daemon out, and 404 lets its clients finish (`http-check disable-on-404` of HAProxy).

use super::request::Request;
use super::response::Response;
use super::view::View;
use crate::bus::readiness::Readiness;
use crate::http1::Status;

/// `/readyz`, optionally for a pool or a listener.
pub(super) fn ready(view: &View<'_>, request: &Request) -> Response {
    let unknown = request.query.iter().find(|(name, _)| name != "pool" && name != "listener");
    let readiness = match (unknown, request.parameter("pool"), request.parameter("listener")) {
        (Some((name, _)), ..) => {
            let text = format!("{name:?} is not known here; write ?pool=ID, ?listener=N or ?listener=ADDRESS");
            return Response::text(Status::BadRequest, &text);
        }
        (None, Some(_), Some(_)) => {
            return Response::text(Status::BadRequest, "name a pool or a listener, and not both");
        }
        (None, None, None) => view.bus.readiness(),
        (None, Some(id), None) => {
            let pool = view.workers.pools.iter().position(|pool| pool.core.id == id);
            match pool.and_then(|pool| view.bus.pool_readiness(pool)) {
                Some(readiness) => readiness,
                None => return Response::text(Status::BadRequest, &no_pool(view, id)),
            }
        }
        (None, None, Some(name)) => {
            let listener = view.places.iter().position(|place| place.is_called(name)).or_else(|| name.parse().ok());
            match listener.and_then(|listener| view.bus.listener_readiness(listener)) {
                Some(readiness) => readiness,
                None => return Response::text(Status::BadRequest, &no_listener(view, name)),
            }
        }
    };
    match readiness {
        Readiness::Ready => Response::text(Status::Ok, &ready_but(view)),
        Readiness::NotReady(why) => Response::text(Status::Unavailable, &format!("not ready: {why}")),
        Readiness::Draining => Response::text(Status::NotFound, "draining: the daemon shuts down"),
    }
}

/// The answer if clients are served, with anything that an operator should look at.
fn ready_but(view: &View<'_>) -> String {
    let failures = (0..view.workers.pools.len()).filter_map(|pool| view.bus.roll_failure(pool));
    std::iter::once("ready").chain(failures).collect::<Vec<_>>().join("; ")
}

fn no_pool(view: &View<'_>, id: &str) -> String {
    let ids: Vec<&str> = view.workers.pools.iter().map(|pool| pool.core.id.as_str()).collect();
    format!("there is no pool {id:?}; the pools are {}", ids.join(", "))
}

fn no_listener(view: &View<'_>, name: &str) -> String {
    let places: Vec<String> =
        view.places.iter().enumerate().map(|(at, place)| format!("{at} ({})", place.asked)).collect();
    format!("there is no listener {name:?}; the listeners are {}", places.join(", "))
}
