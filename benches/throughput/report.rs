//! What comes out: a table on the screen while it runs, figures in target/bench, and a record to be committed.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::Path;

use serde_json::{Value, json};

use crate::admin::Asked;
use crate::attack;
use crate::case::Case;
use crate::fairness::Fairness;
use crate::idle::Idle;
use crate::machine::{self, Placement};
use crate::options::Options;
use crate::round::{Row, unit};
use crate::server::{self, Contestant};
use crate::websocket::gateways::Gateway;

/// Something that was measured and has a figure to reach.
pub struct Figure {
    /// What it is.
    pub what: String,
    /// What it shall be.
    pub goal: String,
    /// What it is today.
    pub value: String,
    /// Whether that will do.
    pub reached: bool,
    /// For the record.
    pub figures: Value,
}

/// See the top of the file.
pub struct Report<'a> {
    options: &'a Options,
    head: Vec<String>,
    table: String,
    cases: Vec<Value>,
    rest: serde_json::Map<String, Value>,
}

const ATTACKS_HEAD: &str = "| attack | goal | peer | stdio_bus |\n|---|---|---|---|";

const HEAD: &str = "\
| case | who | CPU µs | × relay | bus is | syscalls | switches | messages/s | p50 µs | p99 | p99.9 | faults |
|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|";

impl<'a> Report<'a> {
    /// An empty one.
    pub fn new(options: &'a Options) -> Self {
        let peer = options.peer.as_ref().map_or_else(String::new, |peer| {
            format!("; peer: {}", peer.file_name().unwrap_or(peer.as_os_str()).display())
        });
        let head = vec![
            format!(
                "{}, {} CPUs, Linux {}, TCP congestion control {}",
                machine::cpu_name(),
                machine::cpus(),
                machine::kernel(),
                machine::congestion_control()
            ),
            format!("{}; on one CPU where marked ¹", Placement::choose(false, options)),
            format!("{} rounds of {} ms, interleaved; medians{peer}", options.rounds, options.round.as_millis()),
        ];
        Self { options, head, table: format!("{HEAD}\n"), cases: Vec::new(), rest: serde_json::Map::new() }
    }

    /// Says what the table will mean.
    pub fn print_head(&self) {
        for line in &self.head {
            println!("{line}");
        }
        println!(
            "CPU: the daemon's own for a round trip (of a token stream: for a line). Bus is: its CPU to this one's.\n\
             \n{HEAD}"
        );
    }

    /// Adds a case.
    pub fn add(&mut self, case: &Case, rows: Vec<Row>) {
        let relay = rows.iter().find(|row| row.who == Contestant::Relay).map(|row| row.ratio);
        let one_cpu = self.options.one_cpu.unwrap_or(case.one_cpu);
        let name = format!("{}{}", case.name, if one_cpu { " ¹" } else { "" });
        for row in &rows {
            let line = match &row.failed {
                Some(why) => format!("| {} | {} | failed: {why} |", case.name, row.who.name()),
                None => format!(
                    "| {} | {} | {:.2} | {} | {} | {} | {:.3} | {:.0} | {:.0} | {:.0} | {:.0} | {} |",
                    if row.who == Contestant::Bus { name.as_str() } else { "" },
                    row.who.name(),
                    row.cpu_micros,
                    relay.map_or_else(|| "–".to_owned(), |relay| format!("{:.2}", row.ratio / relay)),
                    if row.who == Contestant::Bus { String::new() } else { times(1.0 / row.ratio) },
                    row.syscalls.map_or_else(|| "–".to_owned(), |calls| format!("{calls:.3}")),
                    row.switches,
                    row.rate,
                    row.times[0],
                    row.times[1],
                    row.times[2],
                    faults(row),
                ),
            };
            println!("{line}");
            self.table.push_str(&line);
            self.table.push('\n');
        }
        let figures: Vec<_> = rows.iter().map(figures).collect();
        self.cases.push(json!({ "case": case.name, "unit": unit(case), "contestants": figures }));
    }

    /// Adds the fairness case.
    pub fn add_fairness(&mut self, all: Vec<Fairness>) {
        let mut text = String::new();
        for fairness in &all {
            let [quiet, flooded] =
                [fairness.quiet, fairness.flooded].map(|t| format!("{:.0} / {:.0} / {:.0}", t[0], t[1], t[2]));
            let _ = writeln!(
                text,
                "{}: 63 polite clients wait p50 / p99 / p99.9 {quiet} µs, with it {flooded} µs: p99 × {:.2}; {:.1} % of their \
                 requests are refused; the flooding client receives {:.0} lines/s",
                fairness.name,
                fairness.ratio,
                100.0 * fairness.refused,
                fairness.flood_rate
            );
        }
        let figures = all.iter().map(|f| {
            json!({ "flood": f.name, "quiet_micros": f.quiet, "flooded_micros": f.flooded, "p99_ratio": f.ratio, "refused": f.refused,
                    "flood_lines_per_second": f.flood_rate })
        });
        let figures = figures.collect();
        self.add_text("fairness", &text, figures);
    }

    /// Adds what came of an attack. The first one begins the table.
    pub fn add_attack(&mut self, row: attack::Row) {
        let cell = |who| match row.cells.iter().find(|(contestant, _)| *contestant == who) {
            Some((_, outcome)) if outcome.reached => outcome.text.clone(),
            Some((_, outcome)) => format!("**{}**", outcome.text),
            None => "–".to_owned(),
        };
        let name = row.name.trim_start_matches("fairness, ");
        let mut line = format!("| {name} | {} | {} | {} |", row.goal, cell(Contestant::Peer), cell(Contestant::Bus));
        let all = self.rest.entry("attacks").or_insert_with(|| {
            line.insert_str(
                0,
                &format!("\nHow polite clients fare; in bold where the goal is missed:\n\n{ATTACKS_HEAD}\n"),
            );
            json!([])
        });
        println!("{line}");
        let _ = writeln!(self.table, "{line}");
        let cells = row.cells.iter().map(|(who, outcome)| {
            json!({ "who": who.name(), "reached": outcome.reached, "text": outcome.text, "figures": outcome.figures })
        });
        let figures = json!({ "attack": name, "goal": row.goal, "contestants": cells.collect::<Value>() });
        if let Some(all) = all.as_array_mut() {
            all.push(figures);
        }
    }

    /// Adds the idle case.
    pub fn add_idle(&mut self, all: Vec<Idle>) {
        let mut text = String::new();
        for idle in &all {
            let _ = writeln!(
                text,
                "{} listens {:.1} ms after its start; idle it holds {:.1} MB, with {} clients {:.1} MB; with them it \
                 uses {:.0} µs of CPU in {} s",
                idle.who.name(),
                idle.start_millis,
                idle.resident as f64 / 1e6,
                idle.clients,
                idle.resident_with_clients as f64 / 1e6,
                idle.cpu_micros,
                idle.wait.as_secs(),
            );
        }
        let figures = all.iter().map(|idle| {
            json!({ "who": idle.who.name(), "start_millis": idle.start_millis, "resident_bytes": idle.resident,
                    "clients": idle.clients, "resident_bytes_with_clients": idle.resident_with_clients,
                    "cpu_micros": idle.cpu_micros, "seconds": idle.wait.as_secs() })
        });
        let figures = figures.collect();
        self.add_text("idle", &text, figures);
    }

    /// Adds what looking inside a full daemon takes.
    pub fn add_admin(&mut self, all: &[Asked]) {
        let mut text = String::from(
            "With 1,024 clients and 4,092 requests that wait, a polite client asks again 5 ms after each answer:\n",
        );
        for asked in all {
            let _ = match asked.path {
                Some(path) => write!(
                    text,
                    "{path} takes {:.1} ms, {:.1} at most, for {} kB; ",
                    asked.millis[0],
                    asked.millis[1],
                    asked.bytes / 1000
                ),
                None => write!(text, "nobody asks; "),
            };
            let [middle, tail, longest] = asked.waits;
            let _ = writeln!(text, "the client waits p50 {middle:.2} ms, p99 {tail:.2}, {longest:.2} at most");
        }
        let figures = all.iter().map(|asked| {
            json!({ "path": asked.path, "millis": asked.millis, "bytes": asked.bytes, "waits_millis": asked.waits })
        });
        let figures = figures.collect();
        self.add_text("admin", &text, figures);
    }

    /// Adds figures to reach.
    pub fn add_figures(&mut self, all: Vec<Figure>) {
        if all.is_empty() {
            return;
        }
        let mut text =
            String::from("In bold where the goal is missed:\n\n| WebSocket | goal | stdio_bus |\n|---|---|---|\n");
        for Figure { what, goal, value, reached, .. } in &all {
            let value = if *reached { value.clone() } else { format!("**{value}**") };
            let _ = writeln!(text, "| {what} | {goal} | {value} |");
        }
        let figures = all.into_iter().map(|figure| {
            json!({ "what": figure.what, "goal": figure.goal, "value": figure.value, "reached": figure.reached,
                    "figures": figure.figures })
        });
        let figures = figures.collect();
        self.add_table("figures", &text, figures);
    }

    /// Adds other ways to the same worker.
    pub fn add_gateways(&mut self, all: &[Gateway]) {
        let mut text = String::from(
            "32 clients with 4 requests of 200 B each in flight; CPU and memory (PSS) of all processes, workers included:\n\n\
             | over WebSocket | CPU µs | messages/s | processes | MB before | MB a connection |\n|---|--:|--:|--:|--:|--:|\n",
        );
        for way in all {
            let Gateway { name, cpu_micros, rate, processes, base, each } = way;
            let _ = writeln!(text, "| {name} | {cpu_micros:.1} | {rate:.0} | {processes} | {base:.1} | {each:.2} |");
        }
        let figures = all.iter().map(|way| {
            json!({ "way": way.name, "cpu_micros": way.cpu_micros, "messages_per_second": way.rate,
                    "processes": way.processes, "megabytes": way.base, "megabytes_a_connection": way.each })
        });
        let figures = figures.collect();
        self.add_table("gateways", &text, figures);
    }

    fn add_table(&mut self, name: &str, text: &str, figures: Value) {
        println!("\n{text}");
        let _ = write!(self.table, "\n{text}");
        self.rest.insert(name.to_owned(), figures);
    }

    fn add_text(&mut self, name: &str, text: &str, figures: Value) {
        println!("\n{text}");
        let _ = write!(self.table, "\n{}", text.replace('\n', "\n\n"));
        self.rest.insert(name.to_owned(), figures);
    }

    /// Writes the files.
    pub fn finish(self) -> io::Result<()> {
        let mut figures = json!({ "machine": self.head, "cases": self.cases });
        if let Some(object) = figures.as_object_mut() {
            object.extend(self.rest);
        }
        let json = serde_json::to_string_pretty(&figures)?;
        let path = server::target().join("bench/throughput.json");
        write(&path, &json)?;
        println!("\n{}", path.display());
        if let Some(record) = &self.options.record {
            let head = self.head.iter().map(|line| format!("- {line}\n")).collect::<String>();
            let text = format!("# Throughput\n\n{head}\n{}", self.table);
            write(&record.with_extension("md"), &text)?;
            write(&record.with_extension("json"), &format!("{json}\n"))?;
        }
        Ok(())
    }
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    fs::write(path, text)
}

fn figures(row: &Row) -> Value {
    json!({
        "who": row.who.name(),
        "cpu_micros": row.cpu_micros,
        "cpu_to_bus": row.ratio,
        "syscalls": row.syscalls,
        "context_switches": row.switches,
        "messages_per_second": row.rate,
        "p50_micros": row.times[0],
        "p99_micros": row.times[1],
        "p999_micros": row.times[2],
        "messages": row.messages,
        "lost": row.faults.lost,
        "misrouted": row.faults.misrouted,
        "reordered": row.faults.reordered,
        "failed": row.failed,
    })
}

fn faults(row: &Row) -> String {
    let faults = row.faults;
    match faults.lost + faults.misrouted + faults.reordered {
        0 => "0".to_owned(),
        _ => format!("{} lost, {} misrouted, {} reordered", faults.lost, faults.misrouted, faults.reordered),
    }
}

fn times(ratio: f64) -> String {
    if ratio < 0.5 { format!("1/{:.1}", 1.0 / ratio) } else { format!("{ratio:.2}") }
}
