//! Arguments of launches, which calls of HIP have: kernel and geometry. Equal ones are stored once.

use foldhash::HashMap;

use super::{event::ArgsFields, strings::Strings};

/// Kernel and geometry of a launch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct LaunchArgs {
    /// Index of the full name.
    pub kernel: Option<u32>,
    /// Zeros if the call has no grid or block.
    pub grid: [u32; 3],
    pub block: [u32; 3],
}

/// Arguments by correlation id.
#[derive(Debug, Default)]
pub struct LaunchArgsTable {
    /// Correlation id, and index of the arguments.
    launches: Vec<(u32, u32)>,
    distinct: Vec<LaunchArgs>,
    index: HashMap<LaunchArgs, u32>,
}

impl LaunchArgsTable {
    /// Adds the arguments of a call, unless it names no kernel or has no correlation id.
    pub fn add(&mut self, correlation: u32, args: &ArgsFields, strings: &mut Strings) {
        let Some(kernel) = args.kernel.0.as_deref().filter(|_| correlation != 0) else { return };
        let kernel = strings.index(kernel);
        let kernel = Some(strings.demangled(kernel));
        let args = LaunchArgs { kernel, grid: args.grid.0, block: args.block.0 };
        let next = self.distinct.len() as u32;
        let index = *self.index.entry(args).or_insert(next);
        if index == next {
            self.distinct.push(args);
        }
        self.launches.push((correlation, index));
    }

    pub fn iter(&self) -> impl Iterator<Item = (u32, LaunchArgs)> + '_ {
        self.launches.iter().map(|(id, args)| (*id, self.distinct[*args as usize]))
    }
}
