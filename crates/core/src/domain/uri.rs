//! Text in addresses.

/// The text in a part of a path, a query or a header: all bytes but unreserved ones (RFC 3986, 2.3)
/// as their numbers.
pub fn percent_encoded(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let encode = |byte: u8| match is_plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    text.bytes().map(encode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_unreserved_characters_stay() {
        assert_eq!(percent_encoded("a-Z_0.9~"), "a-Z_0.9~");
        assert_eq!(percent_encoded("ü /?#%\r\n\""), "%C3%BC%20%2F%3F%23%25%0D%0A%22");
    }
}
