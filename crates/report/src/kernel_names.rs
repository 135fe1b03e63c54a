//! Short names of kernels, each unique in its table or chart.

use std::collections::{BTreeMap, BTreeSet};

use llmprof_analyze::{
    Analysis,
    kernels::KernelRecord,
    ledger::{Ledger, LedgerMember},
};
use llmprof_core::trace::{kernel::LaunchKind, names::canonical, timeline::Timeline};

use crate::format::{shortened, work_name};

/// Longest name with template arguments, characters; arguments have at least `MIN_ARGUMENTS`.
const MAX_NAME: usize = 72;
const MIN_ARGUMENTS: usize = 24;

/// Short and full name of a kernel.
pub type KernelName<'a> = (&'a str, &'a str);

/// A name for each kernel: the short one, with the template arguments that differ if several full
/// names share it, or with a hash of the full name if these are equal.
pub fn distinct(kernels: &[KernelName]) -> Vec<String> {
    let mut by_short: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (short, full) in kernels {
        by_short.entry(short).or_default().insert(full);
    }
    let mut names: BTreeMap<KernelName, String> = BTreeMap::new();
    for (short, full_names) in by_short {
        let full_names: Vec<&str> = full_names.into_iter().collect();
        let named = with_arguments(short, &full_names);
        names.extend(full_names.into_iter().map(|full| (short, full)).zip(named));
    }
    let mut kernels_of: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for (&(_, full), name) in &names {
        kernels_of.entry(name.clone()).or_default().insert(full);
    }
    for ((_, full), name) in &mut names {
        if kernels_of.get(name).is_some_and(|kernels| kernels.len() > 1) {
            *name = format!("{name} #{:08x}", hash(full));
        }
    }
    kernels.iter().map(|it| names.get(it).cloned().unwrap_or_default()).collect()
}

/// Names of the kernels of one list of records. Tables and charts have all records, and sentences
/// the records of `report.json`: only with more kernels, a table may show more arguments.
#[derive(Debug, Clone, Default)]
pub struct KernelNames {
    /// Unique name by short and full name.
    of_kernel: BTreeMap<String, BTreeMap<String, String>>,
    /// Short names of records that sum several full names.
    summed: BTreeSet<String>,
}

impl KernelNames {
    pub fn of<'a>(records: impl IntoIterator<Item = &'a KernelRecord>) -> Self {
        Self::with_members(records, [])
    }

    /// Names in the ledger's table and in the timeline of an analysis.
    pub fn of_analysis(analysis: &Analysis) -> Self {
        Self::with_members(analysis.kernels.measured(), &analysis.ledger.members)
    }

    /// Names of the kernels of records and of the ledger: a record may sum several kernels.
    pub fn with_members<'a>(
        records: impl IntoIterator<Item = &'a KernelRecord>,
        members: impl IntoIterator<Item = &'a LedgerMember>,
    ) -> Self {
        let records: Vec<&KernelRecord> = records.into_iter().collect();
        let record = |it: &'a KernelRecord| (&*it.kernel_name, &*it.full_name);
        let member = |it: &'a LedgerMember| it.kernel.as_deref().zip(it.full_name.as_deref());
        let of_members = members.into_iter().filter_map(member);
        let of_records = records.iter().copied().map(record);
        let kernels: Vec<KernelName> = of_records.chain(of_members).collect();
        let summed = records.iter().filter(|it| is_summed(it)).map(|it| it.kernel_name.clone());
        Self { summed: summed.collect(), ..Self::of_kernels(&kernels) }
    }

    fn of_kernels(kernels: &[KernelName]) -> Self {
        let mut names = Self::default();
        for ((short, full), name) in kernels.iter().zip(distinct(kernels)) {
            let of_short = names.of_kernel.entry((*short).to_owned()).or_default();
            of_short.insert((*full).to_owned(), name);
        }
        names
    }

    /// The name of one kernel, or of the several kernels that a record sums.
    pub fn of_record(&self, it: &KernelRecord) -> String {
        if is_summed(it) {
            return several(&it.kernel_name);
        }
        self.known(&it.kernel_name, &it.full_name).unwrap_or_else(|| it.kernel_name.clone())
    }

    /// The name of each kind of kernel of a timeline: the known one, or a name that no other kernel
    /// has.
    pub fn of_kinds(&self, nsys: &Timeline) -> Vec<String> {
        let kernel = |it: &LaunchKind| (nsys.text(it.name), nsys.text(it.full_name));
        let kernels: Vec<KernelName> = nsys.kernels.kinds().iter().map(kernel).collect();
        let taken: BTreeSet<&String> = self.of_kernel.values().flat_map(BTreeMap::values).collect();
        let named = distinct(&kernels).into_iter().zip(&kernels).map(|(name, (short, full))| {
            self.known(short, full).unwrap_or_else(|| match taken.contains(&name) {
                true => format!("{name} #{:08x}", hash(full)),
                false => name,
            })
        });
        named.collect()
    }

    fn known(&self, short: &str, full: &str) -> Option<String> {
        self.of_kernel.get(short)?.get(full).cloned()
    }

    /// A member of the ledger with the unique name of its kernel.
    pub fn of_member(&self, it: &LedgerMember) -> LedgerMember {
        // A compiled kernel has the name of its operator.
        let short = it.kernel.as_deref().filter(|kernel| it.operator.as_deref() != Some(*kernel));
        let named = short.and_then(|short| match &it.full_name {
            Some(full) => {
                self.known(short, full).or_else(|| distinct(&[(short, full.as_str())]).pop())
            }
            None => self.of_short(short),
        });
        LedgerMember { kernel: named.or_else(|| it.kernel.clone()), ..it.clone() }
    }

    /// A part of a cause in a sentence: the unique name of its kernel, and the operator and launch
    /// by which it differs from other parts of the kernel.
    pub fn of_part(&self, ledger: &Ledger, it: &LedgerMember) -> String {
        ledger.part_name(it, |it| self.of_member(it).name_by(work_name))
    }

    /// The work before a gap, or a kernel of a stored report without full names.
    fn of_short(&self, short: &str) -> Option<String> {
        let names = self.of_kernel.get(short)?;
        match names.len() {
            1 if !self.summed.contains(short) => names.values().next().cloned(),
            _ => Some(several(short)),
        }
    }
}

/// True for a record of several full names; it has the arguments of the longest.
const fn is_summed(it: &KernelRecord) -> bool {
    it.name_variants > 1
}

fn several(short: &str) -> String {
    format!("{short} (several kernels)")
}

/// The short name with the template arguments that differ between the full names.
fn with_arguments(short: &str, full_names: &[&str]) -> Vec<String> {
    if full_names.len() == 1 && !is_generic(short) {
        return vec![short.to_owned()];
    }
    let arguments: Vec<Vec<String>> = full_names.iter().map(|it| arguments(short, it)).collect();
    let most = arguments.iter().map(Vec::len).max().unwrap_or(0);
    let differs = |at: &usize| arguments.iter().any(|it| it.get(*at) != arguments[0].get(*at));
    let mut shown: Vec<usize> = (0..most).filter(differs).collect();
    if shown.is_empty() {
        shown.push(0);
    }
    let named = full_names.iter().zip(&arguments).map(|(full, arguments)| {
        let scope = if is_generic(short) { scope(short, full) } else { String::new() };
        let of_kernel: Vec<&str> =
            shown.iter().filter_map(|at| arguments.get(*at)).map(String::as_str).collect();
        let list = of_kernel.join(", ");
        if list.trim().is_empty() {
            return format!("{scope}{short}");
        }
        let length = scope.chars().count() + short.chars().count();
        let max = MAX_NAME.saturating_sub(length + 2).max(MIN_ARGUMENTS);
        format!("{scope}{short}<{}>", shortened(&list, max))
    });
    named.collect()
}

/// True for a name that many kernels of a library have, as `cutlass::Kernel2` and
/// `gemvx::kernel`: their scope and arguments name them.
fn is_generic(short: &str) -> bool {
    let name = short.trim_end_matches(|it: char| it.is_ascii_digit());
    ["kernel", "device_kernel"].iter().any(|it| name.eq_ignore_ascii_case(it))
}

/// The innermost namespace of a function: `cutlass::`.
fn scope(short: &str, full: &str) -> String {
    let Some((before, _)) = full.split_once(&format!("::{short}")) else { return String::new() };
    let start = before.trim_end_matches(is_of_name).len();
    match &before[start..] {
        "" => String::new(),
        scope => format!("{scope}::"),
    }
}

/// Template arguments of a function, without the differences between tools.
fn arguments(short: &str, full: &str) -> Vec<String> {
    let text = canonical(full);
    let open = format!("{short}<");
    let mut places = text.match_indices(&open).map(|it| it.0);
    let Some(start) = places.find(|at| !text[..*at].ends_with(is_of_name)) else { return vec![] };
    let mut list = vec![String::new()];
    let mut depth = 0usize;
    for c in text[start + open.len()..].chars() {
        match c {
            '<' | '(' | '[' | '{' => depth += 1,
            '>' | ')' | ']' | '}' if depth == 0 => break,
            '>' | ')' | ']' | '}' => depth -= 1,
            ',' if depth == 0 => {
                list.push(String::new());
                continue;
            }
            _ => {}
        }
        if let Some(last) = list.last_mut() {
            last.push(c);
        }
    }
    list
}

fn is_of_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// FNV-1a, the same in each version of the program.
fn hash(text: &str) -> u32 {
    let next = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    text.bytes().fold(0x811c_9dc5, next)
}

#[cfg(test)]
mod tests {
    use llmprof_analyze::ledger::LedgerCause;
    use llmprof_core::trace::names::base_name;
    use proptest::prelude::*;

    use super::*;

    fn of(full_names: &[&str]) -> Vec<String> {
        distinct(&full_names.iter().map(|it| (base_name(it), *it)).collect::<Vec<_>>())
    }

    #[test]
    fn a_name_of_its_own_stays_and_others_have_the_arguments_that_differ() {
        assert_eq!(of(&["void softmax<float, (int)4>(T1 *)"]), ["softmax"]);
        let add = "void at::vectorized<(int)4, at::AddFunctor<float>, std::array<char *, 2>>(T1)";
        let mul = "void at::vectorized<(int)4, at::MulFunctor<float>, std::array<char *, 2>>(T1)";
        assert_eq!(
            of(&[add, mul, add]),
            [
                "vectorized<AddFunctor<float>>",
                "vectorized<MulFunctor<float>>",
                "vectorized<AddFunctor<float>>",
            ]
        );
    }

    #[test]
    fn a_name_that_all_kernels_of_a_library_have_gets_its_scope_and_arguments() {
        let gemm = "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x128_8x4_tn_align1>(T1::Params)";
        assert_eq!(of(&[gemm]), ["cutlass::Kernel2<cutlass_80_simt_sgemm_128x128_8x4_tn_align1>"]);
        let gemv = |at: u8| format!("void internal::gemvx::kernel<int, float, (int){at}>(T1)");
        let (six, nine) = (gemv(6), gemv(9));
        assert_eq!(of(&[&six, &nine]), ["gemvx::kernel<6>", "gemvx::kernel<9>"]);
        assert_eq!(of(&["Kernel"]), ["Kernel"], "nothing else is known");
    }

    #[test]
    fn a_member_of_the_ledger_has_the_name_of_its_kernel_or_stands_for_several() {
        let gemm = "void cutlass::Kernel<Gemm<float>>(T1)";
        let add = "void at::elementwise<Add>(T1)";
        let mul = "void at::elementwise<Mul>(T1)";
        let kernels = [gemm, add, mul].map(|it| (base_name(it), it));
        let names = KernelNames::of_kernels(&kernels);
        let named = |kernel: &str, full_name: Option<&str>, operator: Option<&str>| {
            let member = LedgerMember {
                stage: "prefill".into(),
                cause: LedgerCause::Unexplained,
                operator: operator.map(str::to_owned),
                kernel: Some(kernel.to_owned()),
                full_name: full_name.map(str::to_owned),
                grid: None,
                block: None,
                calls: 1.0,
                ns: 1,
                share_pct: None,
                pass: String::new(),
                samples: 0,
                gap_parts: 0,
                evidence: String::new(),
                max_saving_ns: 0,
                longest_ns: None,
            };
            names.of_member(&member).kernel.unwrap()
        };
        let add_op = Some("aten::add");
        assert_eq!(named("elementwise", Some(add), add_op), "elementwise<Add>");
        let sub = Some("void at::elementwise<Sub>(T1)");
        assert_eq!(named("elementwise", sub, None), "elementwise", "of no record");
        let sole = "cutlass::Kernel<Gemm<float>>";
        assert_eq!(named("Kernel", Some(gemm), None), sole, "as in sentences");
        assert_eq!(named("Kernel", None, None), sole, "of work before a gap");
        assert_eq!(named("elementwise", None, add_op), "elementwise (several kernels)");
        assert_eq!(named("copy device_to_host", None, None), "copy device_to_host");
        assert_eq!(named("Kernel", Some(gemm), Some("Kernel")), "Kernel", "a compiled operator");
    }

    #[test]
    fn a_record_of_several_full_names_has_no_arguments() {
        let record = |short: &str, full: &str, name_variants: u64| -> KernelRecord {
            serde_json::from_value(serde_json::json!({
                "kernel_name": short, "full_name": full, "name_variants": name_variants,
                "class": "other", "engine": null, "device": 0, "stage": "", "total_ms": 1.0,
                "calls": 2, "mean_ms": 0.5, "grid": [1, 1, 1], "block": [32, 1, 1],
                "registers": 0, "launch_configs": 1, "share_pct": null, "launch_ns": {
                    "count": 2, "total": 9, "mean": 4.5, "median": 4.5, "min": 4, "max": 5,
                    "std": null
                }
            }))
            .unwrap()
        };
        let [ranged, other] = ["void ranged<Pdv>(T1)", "void ranged<Flux>(T1)"];
        let add = "void at::elementwise<Add>(T1)";
        let summed = record("ranged", ranged, 12);
        for records in [
            vec![summed.clone(), record("elementwise", add, 1)],
            vec![summed.clone(), record("ranged", other, 1), record("elementwise", add, 0)],
        ] {
            let names = KernelNames::of(&records);
            assert_eq!(names.of_record(&summed), "ranged (several kernels)");
            assert_eq!(names.of_short("ranged").unwrap(), "ranged (several kernels)");
            assert_eq!(names.of_record(records.last().unwrap()), "elementwise");
        }
    }

    #[test]
    fn names_that_differ_in_parameters_or_in_the_middle_of_long_arguments_get_a_hash() {
        let found = of(&["void f<int>(float)", "void f<int>(double)"]);
        assert!(found.iter().all(|it| it.starts_with("f<int> #")), "{found:?}");
        assert_ne!(found[0], found[1]);
        let long = |middle: &str| format!("void f<A<{0}{middle}{0}>>(T1)", "x".repeat(200));
        let found = of(&[&long("a"), &long("b")]);
        assert!(found.iter().all(|it| it.chars().count() < 90 && it.contains('#')), "{found:?}");
        assert_ne!(found[0], found[1]);
    }

    /// Names of functions, types and values, few enough to be alike often.
    fn full_name() -> impl Strategy<Value = String> {
        let argument = prop_oneof![
            "(int|float|Op<[a-c]>|\\(int\\)[0-3])",
            "[a-c]{1,3}::[A-B]<(int|[0-9])>",
            "[<>(),:# a-c]{0,6}",
        ];
        let arguments = prop::collection::vec(argument, 0..4).prop_map(|it| it.join(", "));
        let function = "(void )?(cutlass::|a::b::)?(Kernel2?|kernel|device_kernel|f|g_[a-b]?)?";
        (function, arguments, "(\\(T1( \\*)?\\))?")
            .prop_map(|(function, arguments, end)| format!("{function}<{arguments}>{end}"))
    }

    proptest! {
        #[test]
        fn two_kernels_of_one_table_never_have_one_name(
            full_names in prop::collection::vec(full_name(), 0..24),
        ) {
            let kernels: Vec<KernelName> =
                full_names.iter().map(|it| (base_name(it), it.as_str())).collect();
            let names = distinct(&kernels);
            prop_assert_eq!(names.len(), kernels.len());
            for (a, of_a) in kernels.iter().zip(&names) {
                for (b, of_b) in kernels.iter().zip(&names) {
                    prop_assert_eq!(a == b, of_a == of_b, "{:?} and {:?}: {}", a, b, of_a);
                }
            }
        }
    }
}
