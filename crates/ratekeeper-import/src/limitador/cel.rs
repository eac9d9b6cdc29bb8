//! Parses the part of CEL that rules can express: comparisons of entries with values.
//!
//! An entry is written `descriptors[0].name` or `descriptors[0]["name"]`. In older files it is just its name, which may
//! contain dots.

/// The name of an entry and the value that it is compared with.
type Equality = (String, String);

/// Parses a condition: one equality, or several joined by `&&`.
///
/// # Errors
/// The reason why it can't be translated.
pub(super) fn equalities(text: &str) -> Result<Vec<Equality>, String> {
    let mut tokens = CelTokens::new(text)?;
    let mut equalities = vec![equality(&mut tokens)?];
    while tokens.take_if(&CelToken::And) {
        equalities.push(equality(&mut tokens)?);
    }
    if tokens.0.is_empty() { Ok(equalities) } else { Err(unsupported_condition()) }
}

/// Parses a variable, and returns the name of its entry.
///
/// # Errors
/// The reason why it can't be translated.
pub(super) fn entry(text: &str) -> Result<String, String> {
    let mut tokens = CelTokens::new(text)?;
    match operand(&mut tokens)? {
        Some(Operand::Entry(name)) if tokens.0.is_empty() => Ok(name),
        _ => Err("a rule can count only by an entry, like descriptors[0].user_id".to_owned()),
    }
}

fn unsupported_condition() -> String {
    "rules can only compare entries with values, like descriptors[0].method == \"GET\", joined by &&"
        .to_owned()
}

fn equality(tokens: &mut CelTokens) -> Result<Equality, String> {
    let first = operand(tokens)?;
    let is_equality = tokens.take_if(&CelToken::Equal);
    let second = if is_equality { operand(tokens)? } else { None };
    match (first, second) {
        (Some(Operand::Entry(name)), Some(Operand::Text(value)))
        | (Some(Operand::Text(value)), Some(Operand::Entry(name))) => Ok((name, value)),
        (Some(Operand::Entry(_)), None) if is_equality => {
            Err("an entry must be compared with a string in quotes, like == \"GET\"".to_owned())
        }
        _ => Err(unsupported_condition()),
    }
}

enum Operand {
    Entry(String),
    Text(String),
}

fn operand(tokens: &mut CelTokens) -> Result<Option<Operand>, String> {
    if let Some(text) = tokens.take(TextKind::Quoted) {
        return Ok(Some(Operand::Text(text)));
    }
    let Some(root) = tokens.take(TextKind::Word) else { return Ok(None) };
    if root == "descriptors" && tokens.take_if(&CelToken::Open) {
        return descriptor_entry(tokens).map(Some);
    }
    let mut name = root.clone();
    while tokens.take_if(&CelToken::Dot) {
        let Some(word) = tokens.take(TextKind::Word) else { return Err(unsupported_condition()) };
        name.push('.');
        name.push_str(&word);
    }
    match root.as_str() {
        "limit" if name == "limit.name" || name == "limit.id" => {
            Err("it uses the limit's own name, which is not an entry".to_owned())
        }
        "true" | "false" | "null" => Ok(None),
        _ => Ok(Some(Operand::Entry(name))),
    }
}

/// Parses an entry after `descriptors[`.
fn descriptor_entry(tokens: &mut CelTokens) -> Result<Operand, String> {
    let index = tokens.take(TextKind::Number);
    if index.is_none() || !tokens.take_if(&CelToken::Close) {
        return Err(unsupported_condition());
    }
    if index.as_deref() != Some("0") {
        return Err("a rule sees one descriptor at a time, as descriptors[0]".to_owned());
    }
    let name = if tokens.take_if(&CelToken::Dot) {
        tokens.take(TextKind::Word)
    } else if tokens.take_if(&CelToken::Open) {
        tokens.take(TextKind::Quoted).filter(|_| tokens.take_if(&CelToken::Close))
    } else {
        None
    };
    name.map(Operand::Entry)
        .ok_or_else(|| "the entry's name is missing, as in descriptors[0].name".to_owned())
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum CelToken {
    Text(TextKind, String),
    Dot,
    Open,
    Close,
    Equal,
    And,
    /// Any other CEL token, which rules can't express.
    Other,
}

/// The kind of a token with a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TextKind {
    Word,
    Number,
    /// Text in quotes.
    Quoted,
}

/// The tokens of an expression, in reverse order, so that the next one is popped off the end.
struct CelTokens(Vec<CelToken>);

impl CelTokens {
    fn new(text: &str) -> Result<CelTokens, String> {
        let mut tokens = Vec::new();
        let mut rest = text.trim_start();
        while let Some(first) = rest.chars().next() {
            let (token, length) = match first {
                '"' | '\'' => string_token(rest, first)?,
                'a'..='z' | 'A'..='Z' | '_' => {
                    token_while(rest, |c| c.is_ascii_alphanumeric() || c == '_', TextKind::Word)
                }
                '0'..='9' => token_while(rest, |c| c.is_ascii_digit(), TextKind::Number),
                '.' => (CelToken::Dot, 1),
                '[' => (CelToken::Open, 1),
                ']' => (CelToken::Close, 1),
                _ if rest.starts_with("==") => (CelToken::Equal, 2),
                _ if rest.starts_with("&&") => (CelToken::And, 2),
                other => (CelToken::Other, other.len_utf8()),
            };
            tokens.push(token);
            rest = rest[length..].trim_start();
        }
        tokens.reverse();
        Ok(CelTokens(tokens))
    }

    fn take_if(&mut self, token: &CelToken) -> bool {
        let is_next = self.0.last() == Some(token);
        if is_next {
            self.0.pop();
        }
        is_next
    }

    /// The text of the next token, if it is of this kind.
    fn take(&mut self, kind: TextKind) -> Option<String> {
        match self.0.pop_if(|token| matches!(token, CelToken::Text(found, _) if *found == kind)) {
            Some(CelToken::Text(_, text)) => Some(text),
            _ => None,
        }
    }
}

fn token_while(rest: &str, belongs: impl Fn(char) -> bool, kind: TextKind) -> (CelToken, usize) {
    let length = rest.find(|c| !belongs(c)).unwrap_or(rest.len());
    (CelToken::Text(kind, rest[..length].to_owned()), length)
}

/// Parses a string in quotes, and returns its length in `rest`.
fn string_token(rest: &str, quote: char) -> Result<(CelToken, usize), String> {
    if rest.starts_with("\"\"\"") || rest.starts_with("'''") {
        return Err("strings in triple quotes are not supported".to_owned());
    }
    let mut text = String::new();
    let mut letters = rest.char_indices().skip(1);
    while let Some((at, letter)) = letters.next() {
        match letter {
            letter if letter == quote => return Ok((CelToken::Text(TextKind::Quoted, text), at + 1)),
            '\\' => match letters.next() {
                Some((_, escaped @ ('\\' | '"' | '\'' | '`' | '?'))) => text.push(escaped),
                _ => {
                    return Err("only escapes of quotes and backslashes are supported in strings".to_owned());
                }
            },
            letter => text.push(letter),
        }
    }
    Err("a quote is opened and never closed".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_notations_of_an_entry_are_parsed() {
        let check = |text: &str, expected: &[(&str, &str)]| {
            let expected: Vec<_> =
                expected.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            assert_eq!(equalities(text), Ok(expected), "{text}");
        };
        check("descriptors[0].method == \"GET\"", &[("method", "GET")]);
        check(" descriptors [ 0 ] [ 'auth.user' ]=='it\\'s' ", &[("auth.user", "it's")]);
        check("method == 'GET'", &[("method", "GET")]);
        check("req.method == \"\"", &[("req.method", "")]);
        check("'GET' == descriptors[0].method", &[("method", "GET")]);
        check("a == '1' && descriptors[0]['b'] == \"2\"", &[("a", "1"), ("b", "2")]);
        assert_eq!(entry("descriptors[0].user_id"), Ok("user_id".to_owned()));
        assert_eq!(entry("user_id"), Ok("user_id".to_owned()));
    }

    #[test]
    fn unsupported_conditions_are_reported() {
        let rejected = |text: &str, part: &str| {
            let message = equalities(text).unwrap_err();
            assert!(message.contains(part), "{text}: {message}");
        };
        rejected("descriptors[1].method == 'GET'", "one descriptor at a time");
        rejected("descriptors[0].method != 'GET'", "only compare");
        rejected("descriptors[0].path.startsWith('/a')", "only compare");
        rejected("a == 'x' || b == 'y'", "only compare");
        rejected("!(a == 'x')", "only compare");
        rejected("a == b", "only compare");
        rejected("'a' == 'a'", "only compare");
        rejected("a == 5", "in quotes");
        rejected("a == ", "in quotes");
        rejected("req_method == GET", "only compare");
        rejected("limit.name == 'x'", "limit's own name");
        rejected("descriptors[0] == 'x'", "name is missing");
        rejected("a == 'x", "never closed");
        rejected("a == 'x\\n'", "escapes");
        rejected("a == '''x'''", "triple quotes");
        rejected("", "only compare");
        rejected("true", "only compare");
        for text in ["a + b", "descriptors[0].a == 'x'", "'a'", "size(a)", "descriptors[0].a.b", "é"] {
            assert!(entry(text).is_err(), "{text}");
        }
    }
}
