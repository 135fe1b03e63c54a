//! Errors of the dynamic loader, as one line with the library and a remedy.
//!
//! A runner built for CUDA is linked to the driver, so it cannot report a missing library itself.
//! Loads nothing.

/// Exit code of a program that could not be loaded.
pub const EXIT: i32 = 127;

const LIBRARY: &str = ": error while loading shared libraries: ";
const SYMBOL: &str = ": undefined symbol: ";
/// Library of the driver.
const DRIVER: &str = "libcuda.so";
/// Libraries of the CUDA toolkit that the runner is linked to.
const CUDA: &[&str] =
    &["libcudart.so", "libcublas.so", "libcublasLt.so", "libcurand.so", "libnvrtc.so"];

/// Returns the reason and the remedy, if the last lines contain an error of the loader.
pub fn explain(lines: &[String]) -> Option<String> {
    lines.iter().rev().find_map(|line| library(line).or_else(|| symbol(line)))
}

fn library(line: &str) -> Option<String> {
    let (library, reason) = line.split_once(LIBRARY)?.1.split_once(": ")?;
    let is = |name: &&str| {
        library.strip_prefix(*name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    let remedy = if is(&DRIVER) {
        "it was built for CUDA and needs NVIDIA's driver on every device; install the driver, or \
         llmprof without the feature cuda"
    } else if CUDA.iter().any(is) {
        "install the libraries of the CUDA version that it was built with, and add their folder to \
         ldconfig's or to the service's LD_LIBRARY_PATH"
    } else {
        "install its package"
    };
    let missing = reason.starts_with("cannot open shared object file: No such file");
    let reason =
        if missing { "is missing".to_owned() } else { format!("cannot be loaded ({reason})") };
    Some(format!("{library} {reason}: {remedy}"))
}

/// An installed library that is too old; symbols of the driver start with `cu` and a capital.
fn symbol(line: &str) -> Option<String> {
    let symbol = line.split_once(SYMBOL)?.1.split([' ', ',']).next()?;
    let driver = symbol
        .strip_prefix("cu")
        .is_some_and(|rest| rest.starts_with(|letter: char| letter.is_ascii_uppercase()));
    let (whose, what) = if driver {
        ("NVIDIA's driver", "driver")
    } else {
        ("a library", "library, to the version that it was built with")
    };
    Some(format!("{whose} has no {symbol}: update the {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn explained(line: &str) -> Option<String> {
        explain(&["loading".to_owned(), line.to_owned()])
    }

    fn missing(library: &str) -> String {
        let line = format!(
            "model-runner: error while loading shared libraries: {library}: cannot open shared \
             object file: No such file or directory"
        );
        explained(&line).unwrap()
    }

    #[test]
    fn a_missing_library_is_named_with_its_remedy() {
        assert_eq!(
            missing("libcuda.so.1"),
            "libcuda.so.1 is missing: it was built for CUDA and needs NVIDIA's driver on every \
             device; install the driver, or llmprof without the feature cuda"
        );
        for library in [
            "libcublas.so.13",
            "libcublasLt.so.13",
            "libcurand.so.10",
            "libnvrtc.so.13",
            "libcudart.so.13",
        ] {
            assert!(missing(library).starts_with(&format!(
                "{library} is missing: install the libraries of the CUDA version"
            )));
        }
        assert_eq!(missing("libstdc++.so.6"), "libstdc++.so.6 is missing: install its package");
        assert_eq!(
            missing("libcudart-of-mine.so"),
            "libcudart-of-mine.so is missing: install its package"
        );
    }

    #[test]
    fn an_installed_but_unusable_library_is_named() {
        let line =
            "model-runner: error while loading shared libraries: libcublas.so.13: file too short";
        assert!(explained(line).unwrap().starts_with(
            "libcublas.so.13 cannot be loaded (file too short): install the libraries"
        ));
        let line = "/bin/model-runner: symbol lookup error: /bin/model-runner: undefined symbol: \
                    cuGreenCtxCreate, version libcuda.so.1";
        assert_eq!(
            explained(line).unwrap(),
            "NVIDIA's driver has no cuGreenCtxCreate: update the driver"
        );
        let line = "model-runner: symbol lookup error: model-runner: undefined symbol: cublasNew";
        assert!(
            explained(line).unwrap().starts_with("a library has no cublasNew: update the library")
        );
    }

    #[test]
    fn other_output_is_not_explained() {
        assert_eq!(explained("sh: 1: model-runner: not found"), None);
        assert_eq!(explained("model-runner: error while loading shared libraries: "), None);
        assert_eq!(explain(&[]), None);
    }
}
