//! Every behaviour of a server, gateway or proxy: the message, the retries and the log.

use std::sync::Mutex;

use super::answered::answered;
use super::failed::{broken, refused, retried};
use super::row::Row;

#[test]
fn every_behaviour_has_its_words_its_retries_and_its_log() {
    let rows = rows();
    assert!(rows.len() >= 80, "{} behaviours", rows.len());
    let mut names: Vec<&str> = rows.iter().map(|row| row.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), rows.len(), "each name occurs once");
    let (rows, wrong) = (Mutex::new(rows), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                loop {
                    let Some(row) = rows.lock().unwrap().pop() else { return };
                    // Not for endpoints that only serve the list: they have rows of their own.
                    let found = row.try_out();
                    wrong.lock().unwrap().extend(found);
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{} are wrong:\n{}", wrong.len(), wrong.join("\n"));
}

fn rows() -> Vec<Row> {
    let mut rows = answered();
    rows.extend(refused());
    rows.extend(retried());
    rows.extend(broken());
    rows
}
