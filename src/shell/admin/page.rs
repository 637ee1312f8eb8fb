//! The page for people: one file that asks for nothing but `/status.json` and `/clients.json` of where it came from.

use std::hash::{BuildHasher, RandomState};

use super::response::Response;

const HTML: &str = include_str!("page.html");
/// Stands in the page where the script may run only because the head of the answer says the same.
const MARK: &str = "{{nonce}}";

pub(super) fn page() -> Response {
    let nonce = format!("{:016x}{:016x}", RandomState::new().hash_one(1), RandomState::new().hash_one(2));
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; \
         img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    Response::whole("text/html; charset=utf-8", HTML.replace(MARK, &nonce).into_bytes())
        .with("Content-Security-Policy", policy)
        .with("Referrer-Policy", "no-referrer")
        .with("Cross-Origin-Resource-Policy", "same-origin")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_one_file_that_writes_text_and_no_html() {
        assert_eq!(HTML.matches(MARK).count(), 2, "one script and one style sheet");
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
