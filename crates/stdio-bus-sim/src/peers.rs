//! What real peers make of what reaches them, whatever the bus and its model think: each worker keeps its sessions and
//! the requests that it works on by itself, reads ids and sessionIds in its own way, and knows for which client it
//! does so. A line of one client that it takes for another's is a breach, and panics.

use std::time::Duration;

use super::Random;
use super::line::{Ids, Kind, Line, Meant, Who, meaning, reencoded};
use crate::bus::port::Moment;

/// A session that was never given out may be had by another client after so long without a line of its owner's.
const CLAIM: Duration = Duration::from_secs(60);
/// What is still worked on for a client that has left protects its session for so long.
const GRACE: Duration = Duration::from_secs(5);

/// Which sessionId a worker reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Params,
    Top,
    Either,
}

/// What a worker calls the sessions that it makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Names {
    /// It makes none.
    None,
    /// 0, 1, 2: everybody knows the next one.
    Counted,
    /// Nobody knows them before they are given out.
    Secret,
}

/// A session as its worker keeps it.
#[derive(Debug)]
struct Kept {
    name: String,
    owner: usize,
    /// The worker gave the name out, or has loaded it.
    issued: bool,
    /// It has said so to its owner: what fails later does not end the session.
    sure: bool,
    /// When its owner was told the name, as one of the lines that were passed on.
    told: Option<usize>,
    /// The worker may speak in it.
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

/// A line that a client sent a worker.
pub struct Heard<'a> {
    /// The client.
    pub client: usize,
    /// Its number.
    pub number: usize,
    /// The line as it was written.
    pub line: &'a Line,
    /// Its ids as they arrived.
    pub ids: &'a Ids,
    /// When the bus passed it on.
    pub sent: Moment,
    /// How many lines it had passed on before: many go at one moment.
    pub order: usize,
}

/// One worker's view of the world.
#[derive(Debug)]
pub struct Mind {
    place: Place,
    names: Names,
    /// Takes a name that it does not know for a new session.
    trusting: bool,
    /// Keeps ids as doubles and writes them anew.
    pub doubles: bool,
    /// Answers a request twice at times, or one that it was never asked.
    pub careless: bool,
    /// Leaves most requests unanswered for long.
    pub slow: bool,
    /// Its requests are given up when they are late.
    hurried: bool,
    made: usize,
    sessions: Vec<Kept>,
    /// Sessions that their owners have closed, or whose loading they never heard of: what they send behind that may begin
    /// the session anew, and the bus knows of its end only.
    closed: Vec<(String, usize)>,
    /// Names that it gave out twice: nobody can say whose they are.
    muddled: Vec<String>,
    /// Names that it has spoken of before it refused the requests that it had made them for: nobody was told.
    unmade: Vec<String>,
    /// Ids that it has answered without being asked, or once more: the bus may have taken that for the answer of what
    /// it still works on, and its asker may use the id again.
    blurted: Vec<String>,
    /// Lines that load a session which their client can only have guessed.
    guesses: Vec<usize>,
    work: Vec<Work>,
}

impl Mind {
    /// Any worker's. `hurried` says that the bus gives its requests up after a while.
    pub fn new(random: &mut Random, hurried: bool) -> Self {
        let place = *random.pick(&[Place::Params, Place::Params, Place::Top, Place::Either]);
        let names = match place {
            Place::Params => *random.pick(&[Names::None, Names::Counted, Names::Counted, Names::Secret]),
            // A name at top level may be claimed before it is given out, so a worker that goes by those keeps them secret.
            Place::Top | Place::Either => *random.pick(&[Names::None, Names::Secret]),
        };
        Self {
            place,
            names,
            trusting: names != Names::Counted,
            doubles: random.one_in(2),
            careless: random.one_in(4),
            slow: random.one_in(4),
            hurried,
            made: 0,
            sessions: Vec::new(),
            closed: Vec::new(),
            muddled: Vec::new(),
            unmade: Vec::new(),
            blurted: Vec::new(),
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

    /// Whether it finds the session that it is to load, as line `number` asks it to, and it is nobody else's.
    pub fn can_load(&self, number: usize, line: &Line) -> bool {
        let Some(name) = self.session_of(line) else { return false };
        // One that its owner has closed meanwhile may be somebody else's by now.
        let is_given_away = |kept: &Kept| kept.name == name && line.from != Who::Client(kept.owner);
        let was_closed = self.closed.iter().any(|(closed, by)| *closed == name && line.from == Who::Client(*by));
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

    /// It works no more on what a line cancels.
    fn cancels(&mut self, heard: &Heard<'_>) {
        let Heard { client, number, line, ids, .. } = heard;
        for target in line.targets().iter().zip([&ids.request_id, &ids.params_id].into_iter().flatten()) {
            let id = self.read_id(target.1);
            for work in self.work.iter_mut().filter(|work| work.id == id) {
                assert_eq!(work.client, *client, "breach: line {number} cancels line {}: {line:?}", work.line);
                work.cancelled = true;
            }
        }
    }

    /// It reads a request or a notification. `left` says when a client has gone, and `shared` whether everybody may
    /// use every session.
    pub fn hears(&mut self, heard: &Heard<'_>, shared: bool, left: impl Fn(usize) -> Option<Moment>) {
        let Heard { client, number, line, ids, sent, order } = heard;
        self.cancels(heard);
        let session = self.session_of(line);
        if let (Kind::Request, Some(token)) = (line.kind, &ids.id) {
            self.begins(heard, token, session.clone());
        }
        if line.closes() {
            self.closed.extend(line.names().into_iter().map(|name| (name.clone(), *client)));
        }
        if self.place == Place::Top && line.loads() && line.names().len() > 1 {
            // The bus takes what stands in params for what is loaded.
            self.muddled.extend(line.inner.clone());
        }
        let Some(name) = session.filter(|_| line.targets().is_empty()) else { return };
        if shared || self.is_muddled(&name) {
            return;
        }
        // A fork does not change whose session it is.
        let stays = line.method == "session/fork";
        let works_for = |owner: usize| {
            let of_session = |work: &&Work| work.client == owner && work.session.as_ref() == Some(&name);
            self.work.iter().filter(of_session).any(|work| !work.cancelled)
        };
        let Some(at) = self.sessions.iter().position(|kept| kept.name == name) else {
            if !stays && (self.trusting || line.loads()) {
                let (issued, told) = (line.loads(), line.loads().then_some(*order));
                let (sure, open, used) = (false, true, *sent);
                // It may have refused that before it was asked.
                let blurted = issued && ids.id.as_ref().is_some_and(|id| self.has_blurted(id));
                self.closed.extend(blurted.then(|| (name.clone(), *client)));
                self.sessions.push(Kept { name, owner: *client, issued, sure, told, open, used });
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
            // Who loads a name that nobody was told yet may be the first to say it: the worker refuses that itself.
            let guessed = line.loads() && kept.issued && kept.told.is_none_or(|told| told > *order);
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
            (kept.issued, kept.told) = (true, kept.told.or(Some(*order)));
        }
        kept.open |= line.loads() || !kept.issued;
    }

    /// It has something to do.
    fn begins(&mut self, heard: &Heard<'_>, token: &str, session: Option<String>) {
        let Heard { client, number, line, .. } = heard;
        let id = self.read_id(token);
        if self.blurted.contains(&id) {
            self.work.retain(|work| work.id != id);
        }
        let same = self.work.iter().find(|work| work.id == id);
        assert!(same.is_none(), "breach: line {number} came with the id {token}, which is {same:?}");
        // Where two are named, the bus counts the request to the one that decided its way. A cancellation is no work in a
        // session, and neither is a fork of one that was nobody's then.
        let is_some = |name: &String| line.method != "session/fork" || self.kept(name).is_some();
        let session = session.filter(|_| line.names().len() == 1 && line.targets().is_empty());
        let session = session.filter(is_some);
        self.work.push(Work { id, line: *number, client: *client, session, cancelled: false });
    }

    /// The name of the session that it makes for a client that asks for one.
    pub fn makes(&mut self, worker: usize, client: usize, random: &mut Random) -> Option<String> {
        let name = match self.names {
            Names::None => return None,
            Names::Secret => format!("w{worker}-{}-{}", self.made, random.range(0..1000)),
            Names::Counted => {
                while self.kept(&self.made.to_string()).is_some() || self.is_muddled(&self.made.to_string()) {
                    self.made += 1;
                }
                self.made.to_string()
            }
        };
        self.made += 1;
        let kept = Kept { name, owner: client, issued: true, sure: false, told: None, open: false, used: Moment(0) };
        self.sessions.push(kept);
        self.sessions.last().map(|kept| kept.name.clone())
    }

    /// It refuses the request that it has made a session for, which is none any more.
    pub fn unmakes(&mut self, name: &str) {
        let is_it = |kept: &mut Kept| kept.name == name && kept.issued && kept.told.is_none();
        self.unmade.extend(self.sessions.extract_if(.., is_it).map(|kept| kept.name));
    }

    /// It gives out a name that may be somebody's already.
    pub fn muddles(&mut self, name: String) {
        self.unmakes(&name);
        self.sessions.retain(|kept| kept.name != name);
        self.muddled.push(name);
    }

    /// Whether it has given out a name that may have been somebody's.
    pub fn is_muddled(&self, name: &str) -> bool {
        self.muddled.iter().any(|muddled| muddled == name)
    }

    /// It answers what it was not asked, or was asked once.
    pub fn blurts(&mut self, token: &str) {
        self.blurted.push(self.read_id(token));
    }

    /// Whether it has answered this id when it was not asked, or once more.
    pub fn has_blurted(&self, token: &str) -> bool {
        self.blurted.contains(&self.read_id(token))
    }

    /// It has answered line `number` with a result, or with an error.
    pub fn answered(&mut self, number: usize, line: &Line, result: bool, made: Option<&str>) {
        let worked = self.work.len();
        self.work.retain(|work| work.line != number);
        let is_first = self.work.len() < worked;
        if let Some(kept) = made.and_then(|name| self.kept(name)) {
            kept.open = true;
        }
        let Who::Client(client) = line.from else { return };
        let ends = if result { line.closes() } else { line.loads() };
        // Of a name that stands where it does not look it knows nothing.
        if let Some(name) = self.session_of(line).filter(|_| ends) {
            self.sessions.retain(|kept| kept.owner != client || kept.name != name || kept.sure && !result);
        }
        if line.loads() && !result {
            // What was only claimed is over, whatever it did not look at.
            let names = line.names();
            self.sessions.retain(|kept| kept.owner != client || kept.issued || !names.contains(&&kept.name));
        }
        // Who is told that it has loaded a session has it, though it may have been told before that it is closed.
        let is_loaded = line.loads() && result && is_first && line.method != "session/fork";
        if let Some(name) = self.session_of(line).filter(|name| is_loaded && !self.is_muddled(name)) {
            if self.kept(&name).is_none() {
                let (sure, told, used) = (true, Some(0), Moment(0));
                self.sessions.push(Kept {
                    name: name.clone(),
                    owner: client,
                    issued: true,
                    sure,
                    told,
                    open: true,
                    used,
                });
            }
            self.kept(&name).filter(|kept| kept.owner == client).into_iter().for_each(|kept| kept.sure = true);
        }
    }

    /// The owner of a session has been told its name, by the line with this place among all that were passed on.
    pub fn told(&mut self, name: &str, order: usize) {
        if let Some(kept) = self.kept(name) {
            kept.told.get_or_insert(order);
            kept.sure = true;
        }
    }

    /// A session that it may speak in, and for whom it keeps it.
    pub fn any_session(&self, random: &mut Random) -> Option<Meant> {
        let open: Vec<_> = self.sessions.iter().filter(|kept| kept.open).collect();
        let kept = (!open.is_empty()).then(|| random.pick(&open))?;
        Some(Meant { name: kept.name.clone(), owner: kept.owner, issued: kept.issued })
    }

    /// Its answer to this request is lost: who has asked for a session does not hear that it has it.
    pub fn is_unheard(&mut self, asked: &Line) {
        let Who::Client(client) = asked.from else { return };
        let name = self.session_of(asked).filter(|_| asked.loads());
        self.closed.extend(name.map(|name| (name, client)));
    }

    /// Whether the owner of a session has closed it, or tried to.
    pub fn is_closed(&self, name: &str, owner: usize) -> bool {
        self.closed.iter().any(|(closed, by)| closed == name && *by == owner)
    }

    /// Whether it made this session for somebody who was never told its name.
    pub fn is_untold(&self, name: &str) -> bool {
        let is_untold = |kept: &Kept| kept.name == name && kept.issued && kept.told.is_none();
        self.unmade.iter().any(|unmade| unmade == name) || self.sessions.iter().any(is_untold)
    }
}
