//! `--websocket`: what it costs to be spoken to over WebSocket, beside the figures that it shall not exceed.
//!
//! [`round`] runs cases over TCP and over WebSocket in turn; [`idle`] has connections that say nothing but pongs,
//! [`handshakes`] those that only come and go, [`gateways`] other ways to the same worker. [`crowd`] is their clients.
//!
//! [`round`]: crate::round

mod crowd;
pub mod gateways;
pub mod handshakes;
pub mod idle;

use std::io;

use serde_json::json;

use crate::case::{self, Case};
use crate::options::Options;
use crate::report::{Figure, Report};
use crate::round::{self, Row};
use crate::server::Contestant;

/// What there is beside the cases.
pub const PARTS: [&str; 3] = ["idle", "handshakes", "gateways"];

/// CPU of a round trip over WebSocket at most, for one over TCP: short lines and long ones.
const SHORT: f64 = 1.25;
const LONG: f64 = 1.15;

/// Measures all that is wanted.
pub fn measure(options: &Options, report: &mut Report<'_>) -> io::Result<()> {
    let mut figures = Vec::new();
    for case in case::beside_tcp().filter(|case| options.wants(case.name)) {
        let rows = round::measure(&case, &[Contestant::Bus, Contestant::WebSocket], options)?;
        figures.push(ratio(&case, &rows));
        report.add(&case, rows);
    }
    if options.wants("idle") {
        figures.extend(idle::measure(options)?);
    }
    if options.wants("handshakes") {
        figures.extend(handshakes::measure(options)?);
    }
    report.add_figures(figures);
    if options.wants("gateways") {
        report.add_gateways(&gateways::measure(options)?);
    }
    Ok(())
}

/// What the rows of a case say of the figure that it shall not exceed.
fn ratio(case: &Case, rows: &[Row]) -> Figure {
    let most = if case.is_one_to_one() { LONG } else { SHORT };
    let what = format!("{}: CPU of a round trip, for one over TCP", case.name);
    let goal = format!("at most × {most}");
    match rows.iter().find(|row| row.who == Contestant::WebSocket) {
        Some(Row { failed: None, ratio, .. }) => Figure {
            what,
            goal,
            value: format!("× {ratio:.2}"),
            reached: *ratio <= most,
            figures: json!({ "ratio": ratio, "at_most": most }),
        },
        _ => Figure { what, goal, value: "failed".to_owned(), reached: false, figures: json!(null) },
    }
}
