//! Loads with a figure to reach. The count of requests is a fraction of the figure here;
//! `STDIO_BUS_FIGURE_REQUESTS=300000` (as in scripts/soak) makes it the whole.

use serde_json::json;

use crate::harness::{Setup, echo};

const CONNECTIONS: usize = 64;
const WINDOW: usize = 16;

#[test]
fn sixty_four_connections_through_one_worker_lose_misroute_and_reorder_nothing() {
    let requests = std::env::var("STDIO_BUS_FIGURE_REQUESTS").map_or(30_000, |count| count.parse().expect("a number"));
    let each = requests / CONNECTIONS;
    let mut daemon = Setup::new([echo("echo", 1)]).start();
    let clients: Vec<_> = (0..CONNECTIONS).map(|_| daemon.connect()).collect();
    std::thread::scope(|scope| {
        for (number, mut client) in clients.into_iter().enumerate() {
            scope.spawn(move || {
                let session = format!("session-{number}");
                // 200 bytes with the newline, whatever the numbers' lengths.
                let line = |id: usize| {
                    let frame = json!({ "id": id, "method": "m", "params": [number, id, ""], "sessionId": session });
                    let fill = 199 - frame.to_string().len();
                    json!({ "id": id, "method": "m", "params": [number, id, "x".repeat(fill)], "sessionId": session })
                };
                for id in 0..WINDOW.min(each) {
                    client.send(&line(id));
                }
                for id in 0..each {
                    let answer = client.answer(id);
                    assert_eq!(answer["sessionId"], session);
                    assert_eq!(
                        (&answer["result"]["echo"][0], &answer["result"]["echo"][1]),
                        (&json!(number), &json!(id))
                    );
                    if id + WINDOW < each {
                        client.send(&line(id + WINDOW));
                    }
                }
                assert!(!client.has_something(), "an answer too many");
            });
        }
    });
    let outcome = daemon.stop();
    for word in [" WARN ", " ERROR "] {
        assert!(!outcome.stderr.contains(word), "{}", outcome.stderr);
    }
}
