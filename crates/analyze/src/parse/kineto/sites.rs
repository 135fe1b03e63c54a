//! The line of code behind each launch: the innermost frame of the program around the call, outside
//! PyTorch and Python's own library.

use super::{
    rows::{FileRows, HostRow},
    strings::Strings,
};

/// Parts of the paths of frames that are not the program's.
const NOT_OF_PROGRAM: [&str; 6] =
    ["torch/", "/torch/", "lib/python3", "<frozen", "<string>", "<built-in"];
/// Python's own modules without a path, as the profiler shortens them.
const LIBRARY: [&str; 5] =
    ["threading.py", "contextlib.py", "functools.py", "runpy.py", "concurrent/futures"];

/// Returns true for a frame of the program: `serve.py(34): decode`.
fn is_of_program(name: &str) -> bool {
    let Some((path, _)) = name.split_once(".py(") else { return false };
    // A package that is installed is of the program unless it is PyTorch.
    let path = path.rsplit_once("site-packages/").map_or(path, |(_, package)| package);
    let starts = |part: &&str| path.starts_with(*part);
    !NOT_OF_PROGRAM.iter().any(starts)
        && !path.contains("lib/python3")
        && !LIBRARY.iter().any(|it| name.starts_with(it))
}

/// Correlation id and name of the frame for each call of a file that has both.
pub fn call_sites(rows: &FileRows, threads: usize, strings: &Strings) -> Vec<(u32, u32)> {
    if rows.frames.is_empty() {
        return vec![];
    }
    let mut frames: Vec<Vec<HostRow>> = vec![Vec::new(); threads];
    let mut calls: Vec<Vec<(i64, u32)>> = vec![Vec::new(); threads];
    for frame in rows.frames.iter().filter(|it| is_of_program(strings.get(it.name))) {
        frames[frame.thread as usize].push(*frame);
    }
    for call in rows.calls.iter() {
        if let Ok(correlation @ 1..) = u32::try_from(call.correlation_id) {
            calls[call.global_tid as usize].push((call.start_ns, correlation));
        }
    }
    frames.into_iter().zip(calls).flat_map(|(frames, calls)| innermost(frames, calls)).collect()
}

/// The innermost frame open at the start of each call of a thread.
fn innermost(mut frames: Vec<HostRow>, mut calls: Vec<(i64, u32)>) -> Vec<(u32, u32)> {
    frames.sort_by_key(|it| (it.start_ns, std::cmp::Reverse(it.end_ns)));
    calls.sort_unstable();
    let (mut open, mut next): (Vec<HostRow>, _) = (Vec::new(), frames.into_iter().peekable());
    let mut found = Vec::new();
    for (start_ns, correlation) in calls {
        while let Some(frame) = next.next_if(|it| it.start_ns <= start_ns) {
            while open.last().is_some_and(|outer| outer.end_ns <= frame.start_ns) {
                open.pop();
            }
            open.push(frame);
        }
        while open.last().is_some_and(|frame| frame.end_ns <= start_ns) {
            open.pop();
        }
        found.extend(open.last().map(|frame| (correlation, frame.name)));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_of_the_program_are_neither_pytorch_nor_python() {
        for (name, is) in [
            ("kineto.py(34): <module>", true),
            ("/srv/app/serve.py(120): decode", true),
            ("transformers/models/llama/modeling_llama.py(300): forward", true),
            ("/usr/lib/python3.11/site-packages/vllm/worker.py(9): run", true),
            ("torch/nn/modules/module.py(1775): _call_impl", false),
            ("/usr/lib/python3.11/site-packages/torch/cuda/graphs.py(88): replay", false),
            ("/usr/lib/python3.11/contextlib.py(79): inner", false),
            ("threading.py(1012): run", false),
            ("<built-in method mm of type object at 0x7f>", false),
            ("nn.Module: Linear_0", false),
        ] {
            assert_eq!(is_of_program(name), is, "{name}");
        }
    }

    #[test]
    fn a_call_belongs_to_the_innermost_frame_around_it() {
        let frame =
            |name, start_ns, end_ns| HostRow { start_ns, end_ns, thread: 0, name, external_id: 0 };
        let frames = vec![frame(1, 0, 100), frame(2, 10, 20), frame(3, 12, 15), frame(4, 200, 300)];
        let calls = vec![(250, 8), (13, 5), (16, 6), (50, 7), (150, 9)];
        assert_eq!(innermost(frames, calls), [(5, 3), (6, 2), (7, 1), (8, 4)]);
    }
}
