//! Limits of the images that a runner decodes, checked at submission and before decoding.

/// Pixels per side.
pub const MAX_SIDE: u32 = 16_384;
/// Pixels in total: a letter page at 600 dpi has 5,100 x 6,600.
pub const MAX_PIXELS: u64 = 64_000_000;

/// Bytes of a file.
pub const MAX_FILE_BYTES: u64 = 64 << 20;
/// Bytes of all images in the body of a submission, decoded.
pub const MAX_INLINE_BYTES: u64 = 8 << 20;
/// Memory limit of a decoder in addition to the image, which has at most 8 bytes per pixel.
pub const MAX_DECODER_BYTES: u64 = 512 << 20;

/// Returns true if an image of this size is decoded.
pub fn is_within(width: u32, height: u32) -> bool {
    width.max(height) <= MAX_SIDE && u64::from(width) * u64::from(height) <= MAX_PIXELS
}
