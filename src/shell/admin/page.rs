//! The status page: one file that fetches only `/status.json` and `/clients.json` from its own origin.

use std::hash::{BuildHasher, RandomState};

use serde_json::Value;

use super::response::Response;
use super::tables;

const HTML: &str = include_str!("page.html");
/// The placeholder of the nonce without which the script may not run (Content-Security-Policy).
const MARK: &str = "{{nonce}}";
/// The placeholder of all tables' columns.
const COLUMNS: &str = "{{columns}}";

pub(super) fn page() -> Response {
    let nonce = format!("{:016x}{:016x}", RandomState::new().hash_one(1), RandomState::new().hash_one(2));
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; \
         img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    let page = HTML.replace(MARK, &nonce).replace(COLUMNS, &columns().to_string());
    Response::whole("text/html; charset=utf-8", page.into_bytes())
        .with("Content-Security-Policy", policy)
        .with("Referrer-Policy", "no-referrer")
        .with("Cross-Origin-Resource-Policy", "same-origin")
}

/// The members and headings of each table's rows, in order.
fn columns() -> Value {
    let pair = |column: &tables::Column| Value::from(vec![column.member.to_owned(), column.heading()]);
    tables::columns().map(|(name, columns)| (name, columns.iter().map(pair).collect::<Value>())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_page_is_one_file_that_inserts_text_and_no_html() {
        assert_eq!(HTML.matches(MARK).count(), 2, "one script and one style sheet");
        assert_eq!(HTML.matches(COLUMNS).count(), 1);
        assert!(columns().to_string().contains(r#"["answer_seconds_half_below","p50"]"#));
        for forbidden in
            ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "http://", "https://"]
        {
            assert!(!HTML.contains(forbidden), "{forbidden}");
        }
        for attribute in [" onclick=", " onload=", " style=", " src=", "@import"] {
            assert!(!HTML.contains(attribute), "{attribute}");
        }
    }
}
