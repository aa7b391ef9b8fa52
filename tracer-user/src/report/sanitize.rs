//! Text from a traced process, made harmless for a terminal and for XML.

use std::borrow::Cow;

/// Replaces control characters, those that change the direction or visibility of text, and those that
/// XML does not allow by their escape, such as `\u{1b}`.
pub fn sanitize(text: &str) -> Cow<'_, str> {
    if !text.contains(is_dangerous) {
        return Cow::Borrowed(text);
    }
    let mut clean = String::with_capacity(text.len() + 8);
    for character in text.chars() {
        if is_dangerous(character) {
            clean.extend(character.escape_unicode());
        } else {
            clean.push(character);
        }
    }
    Cow::Owned(clean)
}

pub(super) fn is_dangerous(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{ad}' | '\u{061c}' | '\u{115f}' | '\u{1160}' | '\u{180e}' | '\u{3164}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
                | '\u{feff}' | '\u{ffa0}' | '\u{fffe}' | '\u{ffff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_what_moves_cursor_or_direction_and_nothing_else() {
        assert_eq!(sanitize("a\u{1b}[2Jb\u{202e}c\n"), "a\\u{1b}[2Jb\\u{202e}c\\u{a}");
        assert_eq!(sanitize("\u{9b}x\u{ffff}"), "\\u{9b}x\\u{ffff}");
        assert!(matches!(sanitize("größe 数 <module>"), Cow::Borrowed(_)));
    }
}
