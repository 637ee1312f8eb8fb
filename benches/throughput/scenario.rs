//! What can be measured, and the tables that come of it.

use std::io;

use serde_json::{Value, json};

use crate::harness::Harness;

/// Of several tables the first one is complete for now, the others may wait for rows of other scenarios.
type Run = dyn Fn(&Harness) -> io::Result<Vec<Table>>;

/// One row of what there is to measure.
pub struct Scenario {
    /// For the table and the command line.
    pub name: &'static str,
    /// Measures it.
    pub run: Box<Run>,
}

impl Scenario {
    /// One that is measured so.
    pub fn new(name: &'static str, run: impl Fn(&Harness) -> io::Result<Vec<Table>> + 'static) -> Self {
        Self { name, run: Box::new(run) }
    }
}

/// Some rows. All that have the same name become one table.
pub struct Table {
    /// Its name among the figures.
    pub name: &'static str,
    /// What stands above its first row.
    pub head: &'static str,
    /// Rows of a table, or paragraphs.
    pub rows: Vec<String>,
    /// The same for the record.
    pub figures: Vec<Value>,
}

/// Something that was measured and has a figure to reach.
pub struct Goal {
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

/// The rows of these in the table of all goals.
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

/// In bold where the goal is missed.
pub fn bold_unless(reached: bool, text: &str) -> String {
    if reached { text.to_owned() } else { format!("**{text}**") }
}
