//! The core in a loop of your own: two clients and a worker that are plain values, no thread, no socket, no clock.
//!
//! `cargo run --example core` prints what is sent where. Lines go in with [`Bus::receive`], everything else that happens with
//! [`Bus::handle`]; what comes out are effects, which whoever has the pipes carries out in their order.

use stdio_bus::bus::Bus;
use stdio_bus::bus::port::{ClientKey, Effect, Effects, Input, Moment, Next, Peer, Place, WorkerKey};
use stdio_bus::config::Config;
use stdio_bus::scan::{PAD, Window};

/// What has been queued for whom, in order. A program with real pipes would write it there.
type Queues = Vec<(Peer, Vec<u8>)>;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Its settings may come from anywhere; here they are those of a daemon. The core starts no command and listens nowhere:
    // we are asked to.
    let json = br#"{
        "pools": [{ "id": "agents", "command": "/bin/sh", "instances": 1 }],
        "listeners": [{ "tcp": "127.0.0.1:0" }]
    }"#;
    let mut bus = Bus::new(Config::from_bytes(json, "the example")?.settings());
    let mut queues = Queues::new();
    let mut clock = 0;
    // Time is an argument: nanoseconds that never go back.
    let mut now = || {
        clock += 1_000_000;
        Moment(clock)
    };

    let mut workers: Vec<WorkerKey> = Vec::new();
    for effect in bus.start(now()) {
        match effect {
            Effect::Spawn { worker, name, .. } => {
                println!("the bus wants worker {} of pool {} started", name.place, name.pool.index());
                workers.push(worker);
            }
            other => println!("the bus says {other:?}"),
        }
    }
    let [worker] = workers[..] else { return Err("one worker was asked for".into()) };
    carry_out(bus.handle(now(), Input::Spawned { worker, pid: 4711 }), None, &mut queues);

    let mut clients: Vec<ClientKey> = Vec::new();
    for _ in 0..2 {
        let (client, effects) = bus.connect(now(), 0, Place::Inherited);
        carry_out(effects, None, &mut queues);
        clients.push(client.ok_or("there is room for two")?);
    }

    // Both ask under the same id, as clients do. The worker must not see it twice, so the bus replaces one.
    for (client, text) in clients.iter().zip(["one", "two"]) {
        let request = format!("{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"say\",\"params\":\"{text}\"}}\n");
        send(&mut bus, &mut now, Peer::Client(*client), &request, &mut queues);
    }

    // The worker reads its stdin and answers; the second request first.
    let stdin = written(Peer::Worker(worker), &mut queues);
    carry_out(bus.handle(now(), Input::Sent { peer: Peer::Worker(worker), bytes: stdin.len() }), None, &mut queues);
    for line in String::from_utf8(stdin)?.lines().rev() {
        println!("the worker reads   {line}");
        let request: serde_json::Value = serde_json::from_str(line)?;
        let answer = serde_json::json!({ "jsonrpc": "2.0", "id": request["id"], "result": request["params"] });
        send(&mut bus, &mut now, Peer::Worker(worker), &format!("{answer}\n"), &mut queues);
    }

    // Each answer is with the client that asked, under the id that it used.
    for (number, (client, text)) in clients.iter().zip(["one", "two"]).enumerate() {
        let said = String::from_utf8(written(Peer::Client(*client), &mut queues))?;
        println!("client {number} gets      {}", said.trim_end());
        let answer: serde_json::Value = serde_json::from_str(&said)?;
        assert_eq!((&answer["id"], &answer["result"]), (&1.into(), &text.into()));
    }
    Ok(())
}

/// Gives lines of one peer to the core. The scanner wants [`PAD`] bytes before and behind them that it may look at.
fn send(bus: &mut Bus, now: &mut impl FnMut() -> Moment, from: Peer, lines: &str, queues: &mut Queues) {
    let padded = [&[0; PAD], lines.as_bytes(), &[0; PAD]].concat();
    let mut window = Window::new(&padded, PAD, padded.len() - PAD);
    loop {
        let (received, effects) = bus.receive(now(), from, window);
        carry_out(effects, Some(window), queues);
        if received.next != Next::Again {
            return;
        }
        window = window.without(received.consumed);
    }
}

/// Does what the core says. This program has nothing but queues; see [`Effect`] for what a daemon does.
fn carry_out(effects: Effects<'_>, window: Option<Window<'_>>, queues: &mut Queues) {
    for effect in effects {
        match (effect, window) {
            (Effect::Copy { to, span }, Some(window)) => queues.push((to, window.get(span).to_vec())),
            (Effect::Insert { to, text }, _) => queues.push((to, text.as_bytes().to_vec())),
            _ => {}
        }
    }
}

/// Takes what was queued for one of them.
fn written(to: Peer, queues: &mut Queues) -> Vec<u8> {
    queues.extract_if(.., |(peer, _)| *peer == to).flat_map(|(_, bytes)| bytes).collect()
}
