//! Ranges of XLA, the compiler of JAX: executions of its programs, and of their operations.

use super::range::Range;

/// Domain of the ranges.
pub const DOMAIN: &str = "TSL";
/// Between the name of a module and the number of its program, in readable names.
const PROGRAM: &str = ", program ";

/// A compiled program: a module for one set of shapes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct XlaProgram<'a> {
    pub module: &'a str,
    pub id: u64,
}

/// The name of an annotation in short: `XlaModule:#hlo_module=jit_f,program_id=7#` becomes `jit_f,
/// program 7`, and `Thunk:#name=jit(f),hlo_op=add.1,unique_hlo_op_id=5#` becomes `jit(f): add.1`.
/// `None` for other names.
pub fn short_name(annotation: &str) -> Option<String> {
    let (kind, fields) = annotation.split_once(":#")?;
    let field = |name: &str| {
        let mut fields = fields.trim_end_matches('#').split(',');
        fields.find_map(|field| field.strip_prefix(name)?.strip_prefix('='))
    };
    match kind {
        "XlaModule" => {
            let module = field("hlo_module")?;
            let program = field("program_id").and_then(|id| id.parse::<u64>().ok());
            Some(program.map_or_else(|| module.into(), |id| format!("{module}{PROGRAM}{id}")))
        }
        "Thunk" => {
            let operation = field("hlo_op")?;
            let scope = field("name").filter(|it| !it.is_empty());
            Some(scope.map_or_else(|| operation.into(), |name| format!("{name}: {operation}")))
        }
        _ => None,
    }
}

/// The program that runs within a range.
pub fn program(range: &Range) -> Option<XlaProgram<'_>> {
    let (module, id) = range.name.split_once(PROGRAM).filter(|_| range.domain == DOMAIN)?;
    Some(XlaProgram { module, id: id.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn annotations_have_short_names_that_carry_the_program() {
        let of = |name: &str| short_name(name).unwrap_or_default();
        let module = of("XlaModule:#prefix=args[0],hlo_module=jit_copy,program_id=10612#");
        assert_eq!(module, "jit_copy, program 10612");
        assert_eq!(of("XlaModule:#hlo_module=gemm_fusion_dot.1#"), "gemm_fusion_dot.1");
        let thunk = "Thunk:#name=jit(forward),hlo_op=loop_convert_fusion.7,unique_hlo_op_id=16#";
        assert_eq!(of(thunk), "jit(forward): loop_convert_fusion.7");
        assert_eq!(of("Thunk:#hlo_op=gemm,unique_hlo_op_id=1#"), "gemm");
        for other in ["", "XlaModule:", "XlaModule:##", "XlaPass:#name=dce#", "Thunk:#hlo_op#"] {
            assert_eq!(short_name(other), None, "{other}");
        }
        let range = |domain: &str, name: &str| Range::new((domain, name), (0, None), (0, true));
        let executed = range(DOMAIN, &module);
        assert_eq!(program(&executed), Some(XlaProgram { module: "jit_copy", id: 10612 }));
        assert_eq!(program(&range("", &module)), None);
        assert_eq!(program(&range(DOMAIN, "jit_copy, program x")), None);
    }
}
