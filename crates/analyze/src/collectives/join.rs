//! The same operation of all ranks of a group, as one.
//!
//! Operations are paired by their number in the group if it is recorded, else by their place in the
//! sequence of each rank. What does not agree is not paired: a wrong pair has a wrong wait.

use llmprof_core::trace::collectives::CollectiveKind;

use super::members::{CollectiveLaunch, MemberGroup};

/// Reason for operations without their counterparts.
#[derive(Debug, Clone, PartialEq)]
pub enum NotJoined {
    /// The capture has one rank of the group.
    OneRank,
    /// Several files are of one rank.
    RankTwice { rank: u32 },
    /// The capture lacks ranks of the group, or of the program if groups are not recorded.
    MissingRanks { found: usize, size: u32 },
    /// No operation needs all ranks, as sends and receives: which belong together is unknown.
    NoneNeedsAll,
    /// Ranks have different numbers of operations.
    Counts { least: usize, most: usize },
    /// Ranks have different operations at one place.
    Kinds { place: u64 },
    /// Operations without numbers, on clocks that may differ.
    UnknownClocks,
    /// The clocks cannot be aligned closely enough.
    Spread { spread_ns: i64, median_ns: i64 },
    /// A rank ends before another starts.
    NotSimultaneous { count: usize, of: usize },
}

/// Paired operations of one group: for each, the index of every member's launch.
#[derive(Debug, Clone, Default)]
pub struct JoinedGroup {
    members: usize,
    rows: Vec<u32>,
    /// Numbers that some rank lacks, of recorded ones.
    pub unpaired: usize,
    /// Reason for what is not paired; none if everything is.
    pub problem: Option<NotJoined>,
}

impl JoinedGroup {
    fn failed(problem: NotJoined) -> Self {
        Self { problem: Some(problem), ..Self::default() }
    }

    /// Number of operations.
    pub fn len(&self) -> usize {
        self.rows.len().checked_div(self.members).unwrap_or(0)
    }

    /// The launches of each operation, in order of the members.
    pub fn iter(&self) -> impl Iterator<Item = &[u32]> {
        self.rows.chunks_exact(self.members.max(1))
    }

    /// Removes all pairs.
    pub fn withhold(&mut self, problem: NotJoined) {
        *self = Self { unpaired: self.unpaired, ..Self::failed(problem) };
    }
}

/// Pairs the operations of a group.
pub fn join(group: &MemberGroup) -> JoinedGroup {
    let found = group.members.len();
    let twice = group.members.windows(2).find(|it| it[0].rank == it[1].rank);
    if let Some([first, _]) = twice {
        return JoinedGroup::failed(NotJoined::RankTwice { rank: first.rank });
    }
    if let Some(size) = group.size.filter(|size| *size as usize > found && found > 1) {
        return JoinedGroup::failed(NotJoined::MissingRanks { found, size });
    }
    if found < 2 {
        return JoinedGroup::failed(NotJoined::OneRank);
    }
    let launches = || group.members.iter().flat_map(|it| &it.launches);
    let is_pair = |it: &CollectiveLaunch| it.operation == CollectiveKind::SendReceive;
    if launches().all(is_pair) {
        JoinedGroup::failed(NotJoined::NoneNeedsAll)
    } else if launches().filter(|it| !is_pair(it)).all(|it| it.sequence.is_some()) {
        by_number(group)
    } else {
        by_place(group)
    }
}

/// True if two launches can be of one operation.
fn is_same(a: &CollectiveLaunch, b: &CollectiveLaunch) -> bool {
    use CollectiveKind::{AllGather, AllReduce, Broadcast, Reduce, ReduceScatter};
    let has_one_size =
        matches!(a.operation, AllReduce | AllGather | ReduceScatter | Broadcast | Reduce);
    let sizes = a.bytes.zip(b.bytes).is_none_or(|(a, b)| a == b);
    a.operation == b.operation && (sizes || !has_one_size)
}

/// Pairs by recorded number. Several operations may share one, as coalesced ones do.
fn by_number(group: &MemberGroup) -> JoinedGroup {
    let sorted: Vec<Vec<u32>> = group
        .members
        .iter()
        .map(|member| {
            let is_pair =
                |at: &u32| member.launches[*at as usize].operation == CollectiveKind::SendReceive;
            let mut order: Vec<u32> =
                (0..member.launches.len() as u32).filter(|at| !is_pair(at)).collect();
            let key = |at: &u32| {
                let it = &member.launches[*at as usize];
                (it.sequence, it.start_ns)
            };
            order.sort_by_key(key);
            order
        })
        .collect();
    let number = |member: usize, at: u32| group.members[member].launches[at as usize].sequence;
    let mut joined = JoinedGroup { members: sorted.len(), ..JoinedGroup::default() };
    let mut next = vec![0; sorted.len()];
    loop {
        let head = |member: usize| sorted[member].get(next[member]).map(|at| number(member, *at));
        let Some(least) = (0..sorted.len()).filter_map(head).min() else { break };
        let runs: Vec<&[u32]> = (0..sorted.len())
            .map(|member| {
                let rest = &sorted[member][next[member]..];
                let count = rest.iter().take_while(|at| number(member, **at) == least).count();
                &rest[..count]
            })
            .collect();
        runs.iter().zip(&mut next).for_each(|(run, next)| *next += run.len());
        if runs.iter().any(|run| run.is_empty()) {
            joined.unpaired += 1;
            continue;
        }
        let counts = || runs.iter().map(|run| run.len());
        let is_equal = counts().all(|count| count == runs[0].len());
        let rows = (0..runs[0].len()).map(|at| runs.iter().map(move |run| run[at]));
        if !is_equal || !rows.clone().all(|row| agrees(group, row)) {
            joined.problem = Some(NotJoined::Kinds { place: least.unwrap_or(0) });
            break;
        }
        joined.rows.extend(rows.flatten());
    }
    joined
}

/// True if the launches of one row can be of one operation.
fn agrees(group: &MemberGroup, row: impl Iterator<Item = u32>) -> bool {
    let mut launches = row.zip(&group.members).map(|(at, member)| &member.launches[at as usize]);
    launches.next().is_some_and(|first| launches.all(|it| is_same(first, it)))
}

/// Pairs by place, of operations that need all ranks. All must agree: after one that is missing,
/// every pair would be wrong.
fn by_place(group: &MemberGroup) -> JoinedGroup {
    let mut sequences: Vec<Vec<u32>> = group
        .members
        .iter()
        .map(|member| {
            let needs_all = |at: &u32| member.launches[*at as usize].operation.needs_all_ranks();
            (0..member.launches.len() as u32).filter(needs_all).collect()
        })
        .collect();
    if sequences.iter().all(Vec::is_empty) {
        return JoinedGroup::failed(NotJoined::NoneNeedsAll);
    }
    if has_one_clock(group) {
        let whole = sequences.clone();
        trim(group, &mut sequences);
        // A loss of more than half is not one at the ends of the capture.
        if sequences.iter().zip(&whole).any(|(rest, whole)| 2 * rest.len() < whole.len()) {
            sequences = whole;
        }
    }
    let counts = || sequences.iter().map(Vec::len);
    let (least, most) = (counts().min().unwrap_or(0), counts().max().unwrap_or(0));
    if least != most {
        return JoinedGroup::failed(NotJoined::Counts { least, most });
    }
    let mut rows = Vec::with_capacity(least * sequences.len());
    for place in 0..least {
        let row = sequences.iter().map(|it| it[place]);
        if !agrees(group, row.clone()) {
            return JoinedGroup::failed(NotJoined::Kinds { place: place as u64 });
        }
        rows.extend(row);
    }
    JoinedGroup { members: sequences.len(), rows, ..JoinedGroup::default() }
}

/// True if one file recorded all members.
pub fn has_one_clock(group: &MemberGroup) -> bool {
    group.members.iter().all(|it| it.file == group.members[0].file)
}

/// Removes launches at both ends that ended before another rank's first started, or started after
/// another's last ended: their counterparts are outside the capture.
fn trim(group: &MemberGroup, sequences: &mut [Vec<u32>]) {
    let launch = |member: usize, at: u32| &group.members[member].launches[at as usize];
    loop {
        let all = || sequences.iter().enumerate();
        let first = all().filter_map(|(m, it)| Some(launch(m, *it.first()?).start_ns)).max();
        let last = all().filter_map(|(m, it)| Some(launch(m, *it.last()?).end_ns)).min();
        let (Some(first), Some(last)) = (first, last) else { return };
        let before = sequences.iter().map(Vec::len).sum::<usize>();
        for (member, it) in sequences.iter_mut().enumerate() {
            it.retain(|at| {
                let launch = launch(member, *at);
                launch.end_ns >= first && launch.start_ns <= last
            });
        }
        if sequences.iter().map(Vec::len).sum::<usize>() == before {
            return;
        }
    }
}
