//! Interprets lines as real peers do, independently of the bus and the model: each worker keeps its own sessions and
//! pending requests, reads ids and sessionIds in its own way, and knows the client of each. Taking a line of one client
//! for another's is a breach, and panics.

use std::time::Duration;

use super::line::{Ids, Kind, Line, Meant, Party, meaning, of_other_type, reencoded};
use super::{Draws, Random};
use crate::bus::port::Moment;

/// Another client may get a session that was never given out after this long without a line of its owner.
const CLAIM: Duration = Duration::from_secs(60);
/// Pending work of a client that has left protects its session this long.
const GRACE: Duration = Duration::from_secs(5);

/// Which sessionId a worker reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Params,
    Top,
    Either,
}

/// How a worker names the sessions that it creates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Names {
    /// It creates none.
    None,
    /// 0, 1, 2: the next one can be guessed.
    Counted,
    /// They cannot be guessed before they are given out.
    Secret,
}

/// A session as its worker keeps it.
#[derive(Debug)]
struct Kept {
    name: String,
    owner: usize,
    /// The worker gave the name out, or has loaded it.
    issued: bool,
    /// It has said so to its owner: a later failure does not end the session.
    sure: bool,
    /// The forwarded line that named it to its owner.
    named_by: Option<usize>,
    /// The worker may send messages in it.
    open: bool,
    /// When the last line of its owner was sent.
    used: Moment,
}

/// A request that a worker works on.
#[derive(Debug)]
struct Work {
    /// Its id as the worker reads it.
    id: String,
    line: usize,
    client: usize,
    session: Option<String>,
    cancelled: bool,
}

/// A client's line that was forwarded to a worker.
pub struct Received<'a> {
    pub client: usize,
    pub number: usize,
    /// The line as written.
    pub line: &'a Line,
    /// Its ids as received.
    pub ids: &'a Ids,
    /// When the bus forwarded it.
    pub sent: Moment,
    /// Number of lines forwarded before it: several may be forwarded at one moment.
    pub order: usize,
}

/// One worker's view of the world.
#[derive(Debug)]
pub struct WorkerView {
    place: Place,
    names: Names,
    /// It takes an unknown name for a new session.
    trusting: bool,
    /// It keeps ids as doubles and rewrites them.
    pub doubles: bool,
    /// It sometimes answers a request twice, or sends an unsolicited answer.
    pub careless: bool,
    /// It leaves most requests unanswered for long.
    pub slow: bool,
    /// Its requests time out.
    hurried: bool,
    made: usize,
    sessions: Vec<Kept>,
    /// Sessions that their owners have closed, or tried to load without getting an answer: a later line of theirs may
    /// start the session anew, while the bus only knows of its end.
    closed: Vec<(String, usize)>,
    /// Names that it gave out twice: their owner is ambiguous.
    ambiguous: Vec<String>,
    /// Names that it used before it refused the requests it had created them for: no client knows them.
    discarded: Vec<String>,
    /// Ids for which it sent an unsolicited or repeated answer: the bus may have taken that as the answer to a pending
    /// request, and its asker may reuse the id.
    unasked: Vec<String>,
    /// Sessions that its second answers named, and the clients that got these: the bus may have taken such an answer for
    /// that to a newer request under the same id, and the session for that client's.
    named_again: Vec<(String, usize)>,
    /// Lines that load a session whose name their client can only have guessed.
    guesses: Vec<usize>,
    work: Vec<Work>,
}

impl WorkerView {
    /// A random worker. `hurried` means that its requests time out.
    pub fn new(draws: &mut Draws<'_>, hurried: bool) -> Self {
        let place = *draws.of("place").pick(&[Place::Params, Place::Params, Place::Top, Place::Either]);
        let random = draws.of("names");
        let names = match place {
            Place::Params => *random.pick(&[Names::None, Names::Counted, Names::Counted, Names::Secret]),
            // A name at top level may be claimed before it is given out, so a worker that reads it keeps it secret.
            Place::Top | Place::Either => *random.pick(&[Names::None, Names::Secret]),
        };
        Self {
            place,
            names,
            trusting: names != Names::Counted,
            doubles: draws.of("doubles").one_in(2),
            careless: draws.of("careless").one_in(4),
            slow: draws.of("slow").one_in(4),
            hurried,
            made: 0,
            sessions: Vec::new(),
            closed: Vec::new(),
            ambiguous: Vec::new(),
            discarded: Vec::new(),
            unasked: Vec::new(),
            named_again: Vec::new(),
            guesses: Vec::new(),
            work: Vec::new(),
        }
    }

    /// How it reads an id.
    fn read_id(&self, token: &str) -> String {
        meaning(&if self.doubles { reencoded(token) } else { token.to_owned() })
    }

    /// How it writes an id that it has read.
    pub fn write_id(&self, token: &str) -> String {
        if self.doubles { reencoded(token) } else { token.to_owned() }
    }

    /// Whether it finds the session that line `number` asks it to load, and no other client has it.
    pub fn can_load(&self, number: usize, line: &Line) -> bool {
        let Some(name) = self.session_of(line) else { return false };
        // A session that its owner has closed meanwhile may belong to another client by now.
        let is_given_away = |kept: &Kept| kept.name == name && line.from != Party::Client(kept.owner);
        let was_closed = self.closed.iter().any(|(closed, by)| *closed == name && line.from == Party::Client(*by));
        !(self.guesses.contains(&number) || was_closed && self.sessions.iter().any(is_given_away))
    }

    fn session_of(&self, line: &Line) -> Option<String> {
        let name = match self.place {
            Place::Params => line.inner.as_ref(),
            Place::Top => line.top.as_ref(),
            Place::Either => line.inner.as_ref().or(line.top.as_ref()),
        };
        name.cloned()
    }

    fn kept(&mut self, name: &str) -> Option<&mut Kept> {
        self.sessions.iter_mut().find(|kept| kept.name == name)
    }

    /// Drops the work that a line cancels.
    fn cancels(&mut self, received: &Received<'_>) {
        let Received { client, number, line, ids, .. } = received;
        for target in line.targets().iter().zip([&ids.request_id, &ids.params_id].into_iter().flatten()) {
            let id = self.read_id(target.1);
            for work in self.work.iter_mut().filter(|work| work.id == id) {
                assert_eq!(work.client, *client, "breach: line {number} cancels line {}: {line:?}", work.line);
                work.cancelled = true;
            }
        }
    }

    /// Reads a request or a notification. `left` says when a client has left, and `shared` whether every client may use
    /// every session.
    pub fn receive(&mut self, received: &Received<'_>, shared: bool, left: impl Fn(usize) -> Option<Moment>) {
        let Received { client, number, line, ids, sent, order } = received;
        self.cancels(received);
        let session = self.session_of(line);
        if let (Kind::Request, Some(token)) = (line.kind, &ids.id) {
            self.begins(received, token, session.clone());
        }
        if line.closes() {
            self.closed.extend(line.names().into_iter().map(|name| (name.clone(), *client)));
        }
        if self.place == Place::Top && line.loads() && line.names().len() > 1 {
            // The bus loads the name in params.
            self.ambiguous.extend(line.inner.clone());
        }
        let Some(name) = session.filter(|_| line.targets().is_empty()) else { return };
        if shared || self.is_ambiguous(&name) {
            return;
        }
        // A fork does not change the owner of a session.
        let stays = line.method == "session/fork";
        let works_for = |owner: usize| {
            let of_session = |work: &&Work| work.client == owner && work.session.as_ref() == Some(&name);
            self.work.iter().filter(of_session).any(|work| !work.cancelled)
        };
        let Some(at) = self.sessions.iter().position(|kept| kept.name == name) else {
            if !stays && (self.trusting || line.loads()) {
                let (issued, named_by) = (line.loads(), line.loads().then_some(*order));
                let (sure, open, used) = (false, true, *sent);
                // It may have sent the refusal before it was asked.
                let unasked = issued && ids.id.as_ref().is_some_and(|id| self.has_answered_unasked(id));
                self.closed.extend(unasked.then(|| (name.clone(), *client)));
                self.sessions.push(Kept { name, owner: *client, issued, sure, named_by, open, used });
            }
            return;
        };
        let kept = &self.sessions[at];
        if kept.owner != *client {
            let gone = left(kept.owner).filter(|left| left <= sent);
            let free = if kept.issued {
                line.loads() && gone.is_some()
            } else {
                let forgotten = sent.since(kept.used) >= CLAIM;
                let busy = !self.hurried && works_for(kept.owner);
                forgotten || gone.is_some_and(|left| line.loads() || !busy || sent.since(left) >= GRACE)
            };
            // A client that loads a name before it was given out may be its first user: the worker refuses that itself.
            let guessed = line.loads() && kept.issued && kept.named_by.is_none_or(|named_by| named_by > *order);
            let closed = self.closed.contains(&(name, kept.owner));
            assert!(free || guessed || closed, "breach: line {number} of client {client} is in {kept:?}: {line:?}");
            if !free {
                if guessed {
                    self.guesses.push(*number);
                }
                return;
            }
        }
        if stays {
            return;
        }
        let kept = &mut self.sessions[at];
        kept.sure &= kept.owner == *client;
        (kept.owner, kept.used) = (*client, kept.used.max(*sent));
        if line.loads() {
            (kept.issued, kept.named_by) = (true, kept.named_by.or(Some(*order)));
        }
        kept.open |= line.loads() || !kept.issued;
    }

    /// Starts work on a request.
    fn begins(&mut self, received: &Received<'_>, token: &str, session: Option<String>) {
        let Received { client, number, line, .. } = received;
        let id = self.read_id(token);
        if self.unasked.contains(&id) {
            self.work.retain(|work| work.id != id);
        }
        let same = self.work.iter().find(|work| work.id == id);
        assert!(same.is_none(), "breach: line {number} came with the id {token}, which is {same:?}");
        // If a request names two sessions, the bus counts it to the one that determined its route. A cancellation is
        // not work in a session, and neither is a fork of a session that had no owner then.
        let is_some = |name: &String| line.method != "session/fork" || self.kept(name).is_some();
        let session = session.filter(|_| line.names().len() == 1 && line.targets().is_empty());
        let session = session.filter(is_some);
        self.work.push(Work { id, line: *number, client: *client, session, cancelled: false });
    }

    /// The name of the session that it creates for a client that asks for one.
    pub fn makes(&mut self, worker: usize, client: usize, random: &mut Random) -> Option<String> {
        let name = match self.names {
            Names::None => return None,
            Names::Secret => format!("w{worker}-{}-{}", self.made, random.range(0..1000)),
            Names::Counted => {
                while self.kept(&self.made.to_string()).is_some() || self.is_ambiguous(&self.made.to_string()) {
                    self.made += 1;
                }
                self.made.to_string()
            }
        };
        self.made += 1;
        let kept =
            Kept { name, owner: client, issued: true, sure: false, named_by: None, open: false, used: Moment(0) };
        self.sessions.push(kept);
        self.sessions.last().map(|kept| kept.name.clone())
    }

    /// It refuses the request that it has created a session for, which thereby ceases to exist.
    pub fn discards_session(&mut self, name: &str) {
        let is_it = |kept: &mut Kept| kept.name == name && kept.issued && kept.named_by.is_none();
        self.discarded.extend(self.sessions.extract_if(.., is_it).map(|kept| kept.name));
    }

    /// It gives out a name that may already be taken.
    pub fn reuses_name(&mut self, name: String) {
        self.discards_session(&name);
        self.sessions.retain(|kept| kept.name != name);
        self.ambiguous.push(name);
    }

    /// Whether it has given out a name that may have been taken.
    pub fn is_ambiguous(&self, name: &str) -> bool {
        self.ambiguous.iter().any(|ambiguous| ambiguous == name)
    }

    /// A client got a second answer, which names this session.
    pub fn names_again(&mut self, name: &str, client: usize) {
        self.named_again.push((name.to_owned(), client));
    }

    /// Whether a second answer has named this session to a client.
    pub fn has_named_again(&self, name: &str, client: usize) -> bool {
        self.named_again.iter().any(|(named, named_by)| named == name && *named_by == client)
    }

    /// It sends an unsolicited or repeated answer.
    pub fn answers_unasked(&mut self, token: &str) {
        let id = self.read_id(token);
        // The bus takes a number for the string of its digits.
        self.unasked.extend(of_other_type(&id));
        self.unasked.push(id);
    }

    /// Whether it has sent an unsolicited or repeated answer with this id.
    pub fn has_answered_unasked(&self, token: &str) -> bool {
        self.unasked.contains(&self.read_id(token))
    }

    /// It has answered line `number` with a result or an error.
    pub fn answered(&mut self, number: usize, line: &Line, result: bool, made: Option<&str>) {
        let worked = self.work.len();
        self.work.retain(|work| work.line != number);
        let is_first = self.work.len() < worked;
        if let Some(kept) = made.and_then(|name| self.kept(name)) {
            kept.open = true;
        }
        let Party::Client(client) = line.from else { return };
        let ends = if result { line.closes() } else { line.loads() };
        // It ignores a name in a place that it does not read.
        if let Some(name) = self.session_of(line).filter(|_| ends) {
            self.sessions.retain(|kept| kept.owner != client || kept.name != name || kept.sure && !result);
        }
        if line.loads() && !result {
            // A claim ends, whatever place the worker reads.
            let names = line.names();
            self.sessions.retain(|kept| kept.owner != client || kept.issued || !names.contains(&&kept.name));
        }
        // A client that reads that its session is loaded has it, even if it read before that it is closed.
        let is_loaded = line.loads() && result && is_first && line.method != "session/fork";
        if let Some(name) = self.session_of(line).filter(|name| is_loaded && !self.is_ambiguous(name)) {
            if self.kept(&name).is_none() {
                let (sure, named_by, used) = (true, Some(0), Moment(0));
                self.sessions.push(Kept {
                    name: name.clone(),
                    owner: client,
                    issued: true,
                    sure,
                    named_by,
                    open: true,
                    used,
                });
            }
            self.kept(&name).filter(|kept| kept.owner == client).into_iter().for_each(|kept| kept.sure = true);
        }
    }

    /// The owner of a session received its name by this forwarded line.
    pub fn delivered_name(&mut self, name: &str, order: usize) {
        if let Some(kept) = self.kept(name) {
            kept.named_by.get_or_insert(order);
            kept.sure = true;
        }
    }

    /// A session that it may use, and its client.
    pub fn any_session(&self, random: &mut Random) -> Option<Meant> {
        let open: Vec<_> = self.sessions.iter().filter(|kept| kept.open).collect();
        let kept = (!open.is_empty()).then(|| random.pick(&open))?;
        Some(Meant { name: kept.name.clone(), owner: kept.owner, issued: kept.issued })
    }

    /// Its answer to this request is lost: a client that asked for a session does not learn that it has it.
    pub fn is_undelivered(&mut self, asked: &Line) {
        let Party::Client(client) = asked.from else { return };
        let name = self.session_of(asked).filter(|_| asked.loads());
        self.closed.extend(name.map(|name| (name, client)));
    }

    /// Whether the owner of a session has closed it, or tried to.
    pub fn is_closed(&self, name: &str, owner: usize) -> bool {
        self.closed.iter().any(|(closed, by)| closed == name && *by == owner)
    }

    /// Whether it created this session for a client that never received its name.
    pub fn is_unannounced(&self, name: &str) -> bool {
        let is_unannounced = |kept: &Kept| kept.name == name && kept.issued && kept.named_by.is_none();
        self.discarded.iter().any(|discarded| discarded == name) || self.sessions.iter().any(is_unannounced)
    }
}
