//! Placeholders of images in prompts.
//!
//! A placeholder is the position of the next image of its sample. Images without a placeholder
//! precede the prompt, so a prompt may have fewer placeholders than images, and no more.

/// The placeholder of an image in a prompt.
pub const PLACEHOLDER: &str = "<image>";

/// A prompt with more placeholders than images.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "{named} {PLACEHOLDER} placeholder{}, but {given} image{}; remove placeholders or add images",
    plural(*.named),
    plural(*.given)
)]
pub struct ExcessPlaceholders {
    pub named: usize,
    pub given: usize,
}

fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}

/// Number of placeholders in a prompt with so many images.
pub fn count_placeholders(prompt: &str, images: usize) -> Result<usize, ExcessPlaceholders> {
    let named = prompt.matches(PLACEHOLDER).count();
    if named > images { Err(ExcessPlaceholders { named, given: images }) } else { Ok(named) }
}

/// Checks samples, each a prompt with its number of images. The error names the field.
pub fn check_placeholders<'a>(
    samples: impl ExactSizeIterator<Item = (&'a str, usize)>,
) -> Result<(), String> {
    let is_one = samples.len() == 1;
    for (at, (prompt, images)) in samples.enumerate() {
        count_placeholders(prompt, images).map_err(|error| match is_one {
            true => format!("prompt: {error}"),
            false => format!("samples[{at}].prompt: {error}"),
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_has_at_most_as_many_placeholders_as_images() {
        assert_eq!(count_placeholders("a <image> b <image>", 2), Ok(2));
        assert_eq!(count_placeholders("read", 3), Ok(0));
        let check = |samples: &[(&str, usize)]| check_placeholders(samples.iter().copied());
        assert_eq!(check(&[("<image>", 1), ("count", 2)]), Ok(()));
        let remedy = "remove placeholders or add images";
        assert_eq!(
            check(&[("<image>\n<image>", 1)]),
            Err(format!("prompt: 2 <image> placeholders, but 1 image; {remedy}"))
        );
        assert_eq!(
            check(&[("<image>", 1), ("<image>", 0)]),
            Err(format!("samples[1].prompt: 1 <image> placeholder, but 0 images; {remedy}"))
        );
    }
}
