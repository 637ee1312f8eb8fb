//! A scenario, and the tables that it produces.

use std::io;

use serde_json::{Value, json};

use crate::harness::Harness;

/// The first of several tables is complete, the others may get rows from other scenarios.
type Run = dyn Fn(&Harness) -> io::Result<Vec<Table>>;

pub struct Scenario {
    /// Its name in the table and on the command line.
    pub name: &'static str,
    /// Measures it.
    pub run: Box<Run>,
    /// Whether it runs only if a word on the command line asks for it.
    pub on_request: bool,
}

impl Scenario {
    /// A scenario with this function.
    pub fn new(name: &'static str, run: impl Fn(&Harness) -> io::Result<Vec<Table>> + 'static) -> Self {
        Self { name, run: Box::new(run), on_request: false }
    }

    /// The same, which runs only if a word on the command line asks for it.
    pub fn on_request(self) -> Self {
        Self { on_request: true, ..self }
    }
}

/// Rows. All with the same name are joined to one table.
pub struct Table {
    /// Its name among the figures.
    pub name: &'static str,
    /// The text before its first row.
    pub head: &'static str,
    /// Rows of a table, or paragraphs.
    pub rows: Vec<String>,
    /// The same for the record.
    pub figures: Vec<Value>,
}

/// A measured figure with a target.
pub struct Goal {
    /// The figure's description.
    pub what: String,
    /// The target.
    pub goal: String,
    /// The measured value.
    pub value: String,
    /// Whether the target is reached.
    pub reached: bool,
    /// For the record.
    pub figures: Value,
}

/// The rows of these in the table of all targets.
pub fn goals(all: Vec<Goal>) -> Table {
    let mut table = Table {
        name: "figures",
        head: "In bold where the goal is missed:\n\n| figure | goal | stdio_bus |\n|---|---|---|",
        rows: Vec::new(),
        figures: Vec::new(),
    };
    for Goal { what, goal, value, reached, figures } in all {
        table.rows.push(format!("| {what} | {goal} | {} |", bold_unless(reached, &value)));
        table
            .figures
            .push(json!({ "what": what, "goal": goal, "value": value, "reached": reached, "figures": figures }));
    }
    table
}

/// In bold if the target is missed.
pub fn bold_unless(reached: bool, text: &str) -> String {
    if reached { text.to_owned() } else { format!("**{text}**") }
}
