//! Text from outside as HTML shows it: job names, host names, causes, final output of processes.

use crate::report::format::plain;

/// A text for the content of an element or a quoted attribute. All five characters that could end either are replaced,
/// and control characters are replaced too. A text from outside must not be used elsewhere on the page: not in a script,
/// a style or an unquoted attribute.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in plain(text).chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What a browser reads out of escaped text.
    fn shown(html: &str) -> String {
        html.replace("&lt;", "<")
            .replace("&gt;", ">")
            .replace("&quot;", "\"")
            .replace("&#39;", "'")
            .replace("&amp;", "&")
    }

    #[test]
    fn names_from_outside_cannot_become_markup() {
        assert_eq!(escape("<script>'\"&"), "&lt;script&gt;&#39;&quot;&amp;");
        assert_eq!(escape("\0\u{1b}[31m"), "\u{fffd}\u{fffd}[31m");
        assert_eq!(escape("&lt;"), "&amp;lt;");
    }

    proptest! {
        #[test]
        fn a_text_is_shown_as_it_is_and_has_no_markup(text in any::<String>(), tail in "[<>&\"'a;#]{0,40}") {
            let text = text + &tail;
            let html = escape(&text);
            prop_assert!(!html.contains(['<', '>', '"', '\'', '\0']));
            prop_assert_eq!(shown(&html), plain(&text));
        }
    }
}
