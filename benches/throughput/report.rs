//! The output: tables on the screen during the run, figures in target/bench, and a record to commit.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::Path;

use serde_json::{Map, Value, json};

use crate::harness::machine::{self, Placement};
use crate::harness::server;
use crate::options::Options;
use crate::scenario::Table;

pub struct Report<'a> {
    options: &'a Options,
    head: Vec<String>,
    /// Each with the number of its rows already printed.
    tables: Vec<(Table, usize)>,
}

impl<'a> Report<'a> {
    /// An empty report; its head is printed.
    pub fn new(options: &'a Options) -> Self {
        let harness = &options.harness;
        let peer = harness.peer.as_ref().map_or_else(String::new, |peer| {
            format!("; peer: {}", peer.file_name().unwrap_or(peer.as_os_str()).display())
        });
        let head = vec![
            machine::description(),
            format!("{}; on one CPU where marked ¹", Placement::choose(false)),
            format!("{} rounds of {} ms, interleaved; medians{peer}", harness.rounds, harness.round.as_millis()),
        ];
        println!("{}", head.join("\n"));
        Self { options, head, tables: Vec::new() }
    }

    /// Adds the tables of a scenario, and prints the first one.
    pub fn add(&mut self, tables: Vec<Table>) {
        let first = tables.first().map(|table| table.name);
        for table in tables {
            match self.tables.iter_mut().find(|(known, _)| known.name == table.name) {
                Some((known, _)) => {
                    known.rows.extend(table.rows);
                    known.figures.extend(table.figures);
                }
                None => self.tables.push((table, 0)),
            }
        }
        self.show(|table| Some(table.name) == first);
    }

    fn show(&mut self, which: impl Fn(&Table) -> bool) {
        for (table, shown) in self.tables.iter_mut().filter(|(table, _)| which(table)) {
            print!("{}", text(table, *shown));
            *shown = table.rows.len();
        }
    }

    /// Prints the remaining tables, and writes the files.
    pub fn finish(mut self) -> io::Result<()> {
        self.show(|_| true);
        let mut figures = Map::from_iter([("machine".to_owned(), json!(self.head))]);
        for (table, _) in &mut self.tables {
            figures.insert(table.name.to_owned(), Value::Array(std::mem::take(&mut table.figures)));
        }
        let json = serde_json::to_string_pretty(&figures)?;
        let path = server::target().join("bench/throughput.json");
        write(&path, &json)?;
        println!("\n{}", path.display());
        if let Some(record) = &self.options.record {
            let head = self.head.iter().map(|line| format!("- {line}\n")).collect::<String>();
            let tables = self.tables.iter().map(|(table, _)| text(table, 0)).collect::<String>();
            write(&record.with_extension("md"), &format!("# Throughput\n\n{head}{tables}"))?;
            write(&record.with_extension("json"), &format!("{json}\n"))?;
        }
        Ok(())
    }
}

/// A table from this row on, with its head before the first one.
fn text(table: &Table, from: usize) -> String {
    let mut text = String::new();
    if from == 0 && !table.head.is_empty() {
        let _ = write!(text, "\n{}\n", table.head);
    }
    for row in &table.rows[from..] {
        let paragraph = if row.starts_with('|') { "" } else { "\n" };
        let _ = writeln!(text, "{paragraph}{row}");
    }
    text
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    fs::write(path, text)
}
