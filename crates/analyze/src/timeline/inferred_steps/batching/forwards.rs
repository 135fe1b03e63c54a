//! Forwards of one thread on one device: from the tokens that the host uploads to the chosen ones
//! that it reads back.

use foldhash::HashMap;

use super::super::{
    items::{Item, LaunchedItem, ReadBack},
    roles::{KernelRole, Rows},
};

/// Least layers of a model.
const LEAST_LAYERS: u32 = 2;
/// Max copies from the host before a forward that are kept.
const MAX_UPLOADS: usize = 64;
/// Spreads the numbers of launch kinds, so that their sum identifies a graph.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
/// Identity of graphs whose ids are not recorded.
pub const UNKNOWN_GRAPH: u64 = 0;
/// Bytes of the types of tokens: 32 and 64 bits.
pub const WIDTHS: [u64; 2] = [4, 8];

/// Way in which a forward is launched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Launched {
    /// Kernel by kernel, with this number of rows; `None` if no kernel shows it.
    Eager(Option<u64>),
    /// One launch of a graph, by the identity of the graph.
    Graph(u64),
    /// By several graphs, or by a graph and attention outside it.
    Pieces,
}

/// One forward of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forward {
    pub launched: Launched,
    /// The call that launches its lookup or its graph.
    pub start: u32,
    /// Its last call, and the end of the work up to it.
    pub end: (u32, i64),
    /// Bytes of the last copies from the host before it that no launch separates.
    pub uploads: Vec<u64>,
    /// Rows that a lookup takes from the output of the layers, one for each token to choose.
    pub states: Option<u64>,
    /// It writes to a paged cache of keys and values.
    pub writes_cache: bool,
    /// Bytes of the chosen tokens; `None` if the host did not read and wait for them.
    pub chosen_bytes: Option<u64>,
}

/// Returns true if the host uploaded 32 or 64 bits for each of `rows`.
fn has_uploaded(uploads: &[u64], rows: u64) -> bool {
    rows > 0 && WIDTHS.iter().any(|width| uploads.contains(&rows.saturating_mul(*width)))
}

/// A forward whose tokens are not read yet.
#[derive(Debug)]
struct OpenForward {
    forward: Forward,
    /// Launches of each kind of attention or softmax outside graphs.
    layers: HashMap<u32, u32>,
    /// Tokens are chosen after the last layer.
    is_chosen: bool,
    /// The host prepares the next forward.
    is_sealed: bool,
    /// The read of the chosen tokens, for which the host has yet to wait.
    read: Option<(u32, ReadBack)>,
}

/// Walks over the launches, copies and waits of one thread.
pub struct ForwardWalk<'a> {
    roles: &'a [KernelRole],
    forwards: Vec<Forward>,
    open: Option<OpenForward>,
    /// A forward before the open one, until that has attention: a lookup without it takes rows from
    /// the output of the layers.
    before: Option<OpenForward>,
    uploads: Vec<u64>,
    /// Something was launched after the last upload.
    is_launched: bool,
    graph_call: Option<u32>,
}

impl<'a> ForwardWalk<'a> {
    pub fn new(roles: &'a [KernelRole]) -> Self {
        let (forwards, open, before, uploads) = Default::default();
        let (is_launched, graph_call) = Default::default();
        Self { roles, forwards, open, before, uploads, is_launched, graph_call }
    }

    pub fn add(&mut self, it: LaunchedItem) {
        match it.item {
            // A copy inside a graph.
            Item::Upload(_) | Item::Read(_) if self.graph_call == Some(it.call) => {}
            Item::Upload(bytes) => self.upload(bytes),
            Item::Read(read) => self.read(it.call, read),
            Item::Wait(_) => self.wait(),
            Item::Kernel(kind) => self.kernel(it.call, kind, it.end_ns),
            Item::Replayed(kind, graph) => {
                if self.graph_call != Some(it.call) {
                    self.graph_launch(it.call, graph, it.end_ns);
                }
                self.replayed(it.call, kind, it.end_ns);
            }
            Item::WholeGraph(graph) => self.graph_launch(it.call, graph, it.end_ns),
        }
    }

    /// All forwards in their order.
    pub fn finish(mut self) -> Vec<Forward> {
        self.close(None);
        self.forwards
    }

    fn upload(&mut self, bytes: u64) {
        if std::mem::take(&mut self.is_launched) {
            self.uploads.clear();
        }
        if self.uploads.len() < MAX_UPLOADS {
            self.uploads.push(bytes);
        }
        if let Some(open) = &mut self.open {
            open.is_sealed = true;
        }
    }

    fn read(&mut self, call: u32, read: ReadBack) {
        let Some(open) = self.open.as_mut().filter(|it| it.is_chosen && it.read.is_none()) else {
            return;
        };
        open.read = Some((call, read));
        if read.is_complete {
            self.wait();
        }
    }

    fn wait(&mut self) {
        if let Some(read) = self.open.as_ref().and_then(|it| it.read) {
            self.close(Some(read));
        }
    }

    /// Ends the open forward, at the read of its tokens if the host waited for that.
    fn close(&mut self, read: Option<(u32, ReadBack)>) {
        self.forwards.extend(self.before.take().and_then(OpenForward::finish));
        let Some(mut open) = self.open.take() else { return };
        if let Some((call, read)) = read {
            open.forward.end = (call, open.forward.end.1.max(read.end_ns));
            open.forward.chosen_bytes = Some(read.bytes);
            self.uploads.clear();
        }
        self.forwards.extend(open.finish());
    }

    fn start(&mut self, launched: Launched, call: u32, end_ns: i64) {
        if let Some(open) = self.open.take_if(|it| it.is_whole() && !it.is_chosen) {
            self.close(None);
            self.before = Some(open);
        } else {
            self.close(None);
        }
        let forward = Forward {
            launched,
            start: call,
            end: (call, end_ns),
            uploads: std::mem::take(&mut self.uploads),
            states: None,
            writes_cache: false,
            chosen_bytes: None,
        };
        let (is_chosen, is_sealed) = (false, false);
        let layers = HashMap::default();
        self.open = Some(OpenForward { forward, layers, is_chosen, is_sealed, read: None });
    }

    /// Returns to the forward before the open one, whose lookup takes the rows to choose from.
    fn resume(&mut self) {
        let Some(mut before) = self.before.take() else { return };
        if let Some(Launched::Eager(rows)) = self.open.take().map(|it| it.forward.launched) {
            before.forward.states = rows;
        }
        before.is_sealed = false;
        self.open = Some(before);
    }

    fn kernel(&mut self, call: u32, kind: u32, end_ns: i64) {
        self.is_launched = true;
        let role = self.roles[kind as usize];
        if let Some(rows) = role.lookup.filter(|it| self.has_uploaded(*it)) {
            let rows = match rows {
                Rows::Exactly(rows) => Some(u64::from(rows)),
                _ => None,
            };
            self.start(Launched::Eager(rows), call, end_ns);
            return;
        }
        if role.is_attention {
            self.forwards.extend(self.before.take().and_then(OpenForward::finish));
        } else if role.is_sampling {
            self.resume();
        }
        let Some(open) = &mut self.open else { return };
        if role.is_layer && !role.is_sampling {
            open.is_sealed = false;
            *open.layers.entry(kind).or_default() += 1;
        }
        if role.is_attention {
            (open.is_chosen, open.forward.states) = (false, None);
            if let Launched::Graph(_) = open.forward.launched {
                open.forward.launched = Launched::Pieces;
            }
        }
        if let Some(Rows::Exactly(rows)) = role.lookup {
            open.forward.states = Some(rows.into());
        }
        open.is_chosen |= role.is_sampling;
        open.cached(role.cached);
        if !open.is_sealed {
            open.forward.end = (call, open.forward.end.1.max(end_ns));
        }
    }

    /// Returns true if the host uploaded the tokens that a lookup reads, as far as its rows are
    /// known.
    fn has_uploaded(&self, rows: Rows) -> bool {
        match rows {
            Rows::Exactly(rows) => has_uploaded(&self.uploads, rows.into()),
            Rows::AtMost(rows) => (1..=rows).any(|it| has_uploaded(&self.uploads, it.into())),
            Rows::Unknown => !self.uploads.is_empty(),
        }
    }

    /// A graph before the tokens of another are chosen is a piece of the same forward, unless the
    /// host uploaded tokens in between.
    fn graph_launch(&mut self, call: u32, graph: u32, end_ns: i64) {
        (self.graph_call, self.is_launched) = (Some(call), true);
        if let Some(lookup) = self.open.take_if(|it| !it.is_whole())
            && self.uploads.is_empty()
        {
            self.uploads = lookup.forward.uploads;
        }
        let is_piece = |it: &OpenForward| !it.is_chosen && !it.is_sealed;
        if let Some(open) = self.open.as_mut().filter(|it| is_piece(it)) {
            open.forward.launched = Launched::Pieces;
            open.forward.end = (call, open.forward.end.1.max(end_ns));
            return;
        }
        self.close(None);
        self.start(Launched::Graph(u64::from(graph)), call, end_ns);
    }

    fn replayed(&mut self, call: u32, kind: u32, end_ns: i64) {
        let Some(open) = &mut self.open else { return };
        if let Launched::Graph(id) = &mut open.forward.launched {
            // Nodes on several streams may start in any order.
            *id = id.wrapping_add(u64::from(kind + 1).wrapping_mul(GOLDEN));
        }
        open.forward.writes_cache |= self.roles[kind as usize].is_continuous;
        open.forward.end = (call, open.forward.end.1.max(end_ns));
    }
}

impl OpenForward {
    /// Returns true if it has the layers of a model.
    fn is_whole(&self) -> bool {
        self.layers.values().any(|count| *count >= LEAST_LAYERS)
            || !matches!(self.forward.launched, Launched::Eager(_))
    }

    fn finish(self) -> Option<Forward> {
        self.is_whole().then_some(self.forward)
    }

    /// Adds a kernel outside graphs that writes rows to a paged cache. It shows the rows of a
    /// forward whose lookup does not.
    fn cached(&mut self, rows: Option<Rows>) {
        self.forward.writes_cache |= rows.is_some();
        if let (Launched::Eager(known @ None), Some(Rows::Exactly(rows))) =
            (&mut self.forward.launched, rows)
        {
            *known = Some(rows.into()).filter(|rows| has_uploaded(&self.forward.uploads, *rows));
        }
    }
}
