//! Cuts a sequence of launches into forwards of a model.
//!
//! A cut lies between two kernels of layers where a token is chosen, or where a graph is launched
//! again; or where the best beams are chosen, and the keys and values of each layer are then put in
//! their order. A forward starts with the lookup of its embedding, or with the first launch after a
//! wait of the host, if that is of a layer, or is a graph; it ends with the choice of a token, or
//! before a wait. Launches between an end and the next start belong to no forward.

use foldhash::HashMap;
use llmprof_core::trace::kernel::LaunchKind;

use super::{
    items::{Item, LaunchedItem, WaitKind},
    region::Region,
    roles::{GemmRows, KernelRole, Rows},
};

/// Kernels after a lookup whose names identify the start of a forward.
pub const HEAD: usize = 4;
/// Marks a function in a signature; other entries are launch kinds.
const FUNCTION: u64 = 1 << 32;

/// Evidence of the start of a forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartEvidence {
    Lookup,
    /// A lookup before which no forward ended: it needs another forward that starts alike.
    FirstLookup,
    Wait,
    Graph,
}

/// Evidence of the end of a forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndEvidence {
    Sampling,
    Wait,
    Graph,
}

/// One forward, or the launches of an unknown number of them if an end is missing.
#[derive(Debug, Clone, Default)]
pub struct Segment {
    /// First call.
    pub start: Option<(u32, StartEvidence)>,
    /// Last call, and the end of all work up to it.
    pub end: Option<(u32, i64, EndEvidence)>,
    /// The first call after the end.
    pub next: Option<u32>,
    /// Short names of the kernels after the lookup.
    pub head: Vec<u32>,
    /// Launch kind of the lookup that it starts with.
    pub lookup: Option<u32>,
    pub rows: Rows,
    /// Launches of products by their rows.
    pub gemms: [u64; 3],
    /// Full names of attention kernels, sorted.
    pub attention: Vec<u32>,
    /// Launches by kind of layers, or by function for attention, whose geometry depends on lengths.
    pub signature: HashMap<u64, u32>,
    /// Launch kinds of the last kernel of a layer and of the last choice of a token.
    pub last: (Option<u32>, Option<u32>),
    /// Most launches of one kind of attention or softmax: the number of layers.
    pub layers: u32,
    pub blocks: u64,
    /// Graph launches, and launches of layers outside graphs.
    pub graphs: u32,
    pub eager: u64,
    /// Identity of the only graph.
    pub graph: u64,
    /// The graph was traced as a whole.
    pub is_opaque: bool,
}

/// Walks over the launches of one sequence.
pub struct SegmentWalk<'a> {
    roles: &'a [KernelRole],
    kinds: &'a [LaunchKind],
    pub segments: Vec<Segment>,
    open: Option<Segment>,
    region: Region,
    /// End of all work so far, and the call of the last graph launch.
    end_ns: i64,
    graph_call: Option<u32>,
    layers: HashMap<u32, u32>,
    /// No kernel chooses tokens otherwise.
    has_only_top_k: bool,
}

impl<'a> SegmentWalk<'a> {
    pub fn new(roles: &'a [KernelRole], kinds: &'a [LaunchKind]) -> Self {
        Self {
            roles,
            kinds,
            segments: Vec::new(),
            open: None,
            region: Region::default(),
            end_ns: i64::MIN,
            graph_call: None,
            layers: HashMap::default(),
            has_only_top_k: !roles.iter().any(|it| it.is_sampling),
        }
    }

    /// Adds the next launch or wait.
    pub fn add(&mut self, it: LaunchedItem) {
        self.end_ns = self.end_ns.max(it.end_ns);
        match it.item {
            Item::Upload(_) | Item::Read(_) | Item::Wait(WaitKind::Event) => {}
            Item::Wait(WaitKind::AllWork) => self.region.wait(),
            Item::Kernel(kind) if self.roles[kind as usize].is_compute => self.layer(it.call, kind),
            Item::Kernel(kind) => {
                let name = self.kinds[kind as usize].name;
                let role = &self.roles[kind as usize];
                if role.lookup.is_some() {
                    self.open.take_if(|it| !self.segments.is_empty() && it.is_softmax());
                }
                let is_choice = role.is_sampling || (self.has_only_top_k && role.is_top_k);
                self.region.kernel((it.call, self.end_ns), (kind, name), role, is_choice);
            }
            Item::Replayed(kind, graph) => self.replayed(it.call, kind, graph),
            Item::WholeGraph(graph) => {
                self.graph_launch(it.call, graph);
                if let Some(open) = &mut self.open {
                    open.is_opaque = true;
                }
                self.mark(it.call);
            }
        }
    }

    /// The last forward is complete if a token was chosen, or if it is a graph.
    pub fn finish(mut self) -> Vec<Segment> {
        self.prove_beams();
        let is_graph = self.open.as_ref().is_some_and(Segment::is_graph);
        if self.region.is_sampled || is_graph {
            self.close();
        }
        self.segments.extend(self.open.take());
        self.segments
    }

    /// A top-k is a choice of beams only if the keys and values of each layer are moved after it.
    fn prove_beams(&mut self) {
        let layers = self.open.as_ref().map_or(0, |it| it.layers);
        if self.region.by_top_k && self.region.max_moved < 2 * layers.max(1) {
            (self.region.is_sampled, self.region.lookup) = (false, None);
        }
    }

    /// A kernel of a layer outside graphs.
    fn layer(&mut self, call: u32, kind: u32) {
        self.prove_beams();
        let after_graph = self.open.as_ref().is_some_and(Segment::is_graph);
        let region = &self.region;
        let is_cut = region.is_sampled
            || (after_graph && (region.is_waited || region.lookup.is_some()))
            || self.open.is_none();
        self.cut_or_continue(is_cut, call, false);
        if let Some(open) = &mut self.open {
            open.eager += 1;
        }
        self.add_layer(kind);
        self.mark(call);
    }

    fn replayed(&mut self, call: u32, kind: u32, graph: u32) {
        if self.graph_call != Some(call) {
            self.graph_launch(call, graph);
        }
        let role = self.roles[kind as usize];
        if role.is_compute {
            self.add_layer(kind);
        }
        if let Some(open) = &mut self.open {
            open.graph = open.graph.wrapping_mul(31).wrapping_add(kind.into());
            open.blocks = open.blocks.saturating_add(role.blocks);
            if open.rows == Rows::Unknown {
                open.rows = role.lookup.unwrap_or_default();
            }
            // Kernels before a graph that looks up the embedding only prepare it.
            if role.lookup.is_some() && open.start.is_none() && open.is_graph() {
                open.start = Some((call, StartEvidence::Graph));
            }
        }
        self.mark(call);
    }

    fn graph_launch(&mut self, call: u32, graph: u32) {
        self.prove_beams();
        self.graph_call = Some(call);
        let after_graph = self.open.as_ref().is_some_and(Segment::is_graph);
        let region = &self.region;
        let is_cut = region.is_sampled || after_graph || region.is_waited || self.open.is_none();
        self.cut_or_continue(is_cut, call, true);
        if let Some(open) = &mut self.open {
            open.graphs += 1;
            open.graph = open.graph.wrapping_add(u64::from(graph) << 40);
        }
    }

    /// Ends the open forward and starts the next at or before `call`; or adds the region to it.
    fn cut_or_continue(&mut self, is_cut: bool, call: u32, is_graph: bool) {
        if is_cut {
            let is_first = self.open.is_none() && self.segments.is_empty();
            self.region.next = self.region.next.or(Some(call));
            self.close();
            let region = std::mem::take(&mut self.region);
            let start = match region.lookup {
                Some((at, ..)) if is_first => Some((at, StartEvidence::FirstLookup)),
                Some((at, ..)) => Some((at, StartEvidence::Lookup)),
                None if is_graph && region.is_before(call) => Some((call, StartEvidence::Graph)),
                None if region.is_waited && !region.has_prepared && !is_first => {
                    Some((call, StartEvidence::Wait))
                }
                None => None,
            };
            let lookup = region.lookup.map(|(_, kind, _)| kind);
            let rows = region.lookup.map_or(Rows::Unknown, |(_, _, rows)| rows);
            let open = Segment { start, lookup, rows, head: region.head, ..Segment::default() };
            self.layers.clear();
            self.open = Some(open);
        } else if let Some(open) = &mut self.open {
            let region = std::mem::take(&mut self.region);
            open.blocks = open.blocks.saturating_add(region.blocks);
            if open.rows == Rows::Unknown {
                open.rows = region.lookup.map_or(Rows::Unknown, |(_, _, rows)| rows);
            }
        }
    }

    fn add_layer(&mut self, kind: u32) {
        let (role, launch) = (self.roles[kind as usize], self.kinds[kind as usize]);
        let Some(open) = &mut self.open else { return };
        if open.lookup.is_some() && open.head.len() < HEAD {
            open.head.push(launch.name);
        }
        let function = u64::from(launch.full_name) | FUNCTION;
        let entry = if role.is_layer { function } else { kind.into() };
        *open.signature.entry(entry).or_default() += 1;
        open.last.0 = Some(kind);
        open.blocks = open.blocks.saturating_add(role.blocks);
        match role.gemm {
            Some(GemmRows::Few) => open.gemms[0] += 1,
            Some(GemmRows::Many) => open.gemms[1] += 1,
            Some(GemmRows::Unclear) => open.gemms[2] += 1,
            None => {}
        }
        if role.is_layer {
            let count = self.layers.entry(kind).or_default();
            *count += 1;
            open.layers = open.layers.max(*count);
        }
        if role.is_attention
            && let Err(at) = open.attention.binary_search(&launch.full_name)
        {
            open.attention.insert(at, launch.full_name);
        }
    }

    /// Starts the region after a launch of the open forward.
    fn mark(&mut self, call: u32) {
        let at = (call, self.end_ns);
        self.region = Region { end: at, last: at, ..Region::default() };
    }

    fn close(&mut self) {
        let Some(mut open) = self.open.take() else { return };
        let region = &self.region;
        let by = if region.is_sampled && !region.ends_with_wait {
            Some(EndEvidence::Sampling)
        } else if open.is_graph() && region.open_kernels == 0 {
            Some(EndEvidence::Graph)
        } else if region.is_sampled {
            Some(EndEvidence::Wait)
        } else {
            None
        };
        open.end = by.map(|by| (region.end.0, region.end.1, by));
        (open.next, open.last.1) = (region.next, region.sampling);
        if open.is_graph() {
            // Graphs are compared by their identity, and there may be millions of launches.
            open.signature = HashMap::default();
        }
        self.segments.push(open);
    }
}

impl Segment {
    /// Returns true if the forward is one launch of a graph and nothing else.
    pub fn is_graph(&self) -> bool {
        self.graphs == 1 && self.eager == 0 && self.lookup.is_none()
    }

    /// Returns true for softmax alone after the end of a forward: it belongs to the choice of a
    /// token if a lookup follows.
    fn is_softmax(&self) -> bool {
        self.start.is_none()
            && self.graphs == 0
            && self.gemms == [0; 3]
            && self.attention.is_empty()
    }

    /// Share of products with few rows and with many, of at least four with known rows.
    fn gemm_rows(&self) -> Option<GemmRows> {
        let [few, many, unclear] = self.gemms;
        let all = few + many + unclear;
        match () {
            () if all < 4 => None,
            () if few * 5 >= all * 4 => Some(GemmRows::Few),
            () if many * 5 >= all * 4 => Some(GemmRows::Many),
            () => Some(GemmRows::Unclear),
        }
    }

    /// Returns true if all evidence of the rows is of few, and there is some.
    pub fn has_few_rows(&self) -> bool {
        match (self.rows, self.gemm_rows()) {
            (_, Some(GemmRows::Many)) => false,
            (Rows::Exactly(rows) | Rows::AtMost(rows), _) => rows <= 16,
            (Rows::Unknown, by_gemm) => by_gemm == Some(GemmRows::Few),
        }
    }

    /// Returns true if all evidence of the rows is of many, and there is some.
    pub fn has_many_rows(&self) -> bool {
        match (self.rows, self.gemm_rows()) {
            (_, Some(GemmRows::Few)) | (Rows::AtMost(_), _) => false,
            (Rows::Exactly(rows), _) => rows > 16,
            (Rows::Unknown, by_gemm) => by_gemm == Some(GemmRows::Many),
        }
    }
}
