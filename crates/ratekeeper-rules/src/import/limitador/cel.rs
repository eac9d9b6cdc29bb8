//! As much of CEL as rules can say: that an entry has a value.
//!
//! An entry is written `descriptors[0].name` or `descriptors[0]["name"]`, and in older files by its name alone, which may
//! have dots in it.

/// What an entry is compared with.
type Equality = (String, String);

/// The entries and values of a condition: one equality, or several joined by `&&`.
///
/// # Errors
/// Why it can't be translated.
pub(super) fn equalities(text: &str) -> Result<Vec<Equality>, String> {
    let mut tokens = CelTokens::new(text)?;
    let mut equalities = vec![equality(&mut tokens)?];
    while tokens.take(&CelToken::And) {
        equalities.push(equality(&mut tokens)?);
    }
    tokens.end().map_err(|()| only_equality())?;
    Ok(equalities)
}

/// The entry that a variable stands for.
///
/// # Errors
/// Why it can't be translated.
pub(super) fn entry(text: &str) -> Result<String, String> {
    let mut tokens = CelTokens::new(text)?;
    let only_entry = || "only an entry by its name can be counted by, like descriptors[0].user_id".to_owned();
    match operand(&mut tokens)? {
        Some(Operand::Entry(name)) if tokens.end().is_ok() => Ok(name),
        _ => Err(only_entry()),
    }
}

fn only_equality() -> String {
    "rules can only ask for an entry to have a value, like descriptors[0].method == \"GET\", and for several by &&".to_owned()
}

fn equality(tokens: &mut CelTokens) -> Result<Equality, String> {
    let first = operand(tokens)?;
    let is_equality = tokens.take(&CelToken::Equal);
    let second = if is_equality { operand(tokens)? } else { None };
    match (first, second) {
        (Some(Operand::Entry(name)), Some(Operand::Text(value)))
        | (Some(Operand::Text(value)), Some(Operand::Entry(name))) => Ok((name, value)),
        (Some(Operand::Entry(_)), None) if is_equality => {
            Err("what an entry is compared with must be a text in quotes, like == \"GET\"".to_owned())
        }
        _ => Err(only_equality()),
    }
}

enum Operand {
    Entry(String),
    Text(String),
}

fn operand(tokens: &mut CelTokens) -> Result<Option<Operand>, String> {
    if let Some(text) = tokens.text() {
        return Ok(Some(Operand::Text(text)));
    }
    let Some(root) = tokens.word() else { return Ok(None) };
    if root == "descriptors" && tokens.take(&CelToken::Open) {
        return of_descriptor(tokens).map(Some);
    }
    let mut name = root.clone();
    while tokens.take(&CelToken::Dot) {
        let Some(word) = tokens.word() else { return Err(only_equality()) };
        name.push('.');
        name.push_str(&word);
    }
    match root.as_str() {
        "limit" if name == "limit.name" || name == "limit.id" => {
            Err("it asks for the limit's own name, which is no entry".to_owned())
        }
        "true" | "false" | "null" => Ok(None),
        _ => Ok(Some(Operand::Entry(name))),
    }
}

/// What stands behind `descriptors[`.
fn of_descriptor(tokens: &mut CelTokens) -> Result<Operand, String> {
    let index = tokens.number();
    if index.is_none() || !tokens.take(&CelToken::Close) {
        return Err(only_equality());
    }
    if index.as_deref() != Some("0") {
        return Err("a rule sees one descriptor at a time, as descriptors[0]".to_owned());
    }
    let name = if tokens.take(&CelToken::Dot) {
        tokens.word()
    } else if tokens.take(&CelToken::Open) {
        tokens.text().filter(|_| tokens.take(&CelToken::Close))
    } else {
        None
    };
    name.map(Operand::Entry)
        .ok_or_else(|| "the entry's name is missing, as in descriptors[0].name".to_owned())
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum CelToken {
    Word(String),
    Number(String),
    Text(String),
    Dot,
    Open,
    Close,
    Equal,
    And,
    /// Something of CEL that rules can't say.
    Other,
}

/// The tokens of an expression, last first.
struct CelTokens(Vec<CelToken>);

impl CelTokens {
    fn new(text: &str) -> Result<CelTokens, String> {
        let mut tokens = Vec::new();
        let mut rest = text.trim_start();
        while let Some(first) = rest.chars().next() {
            let (token, length) = match first {
                '"' | '\'' => literal(rest, first)?,
                'a'..='z' | 'A'..='Z' | '_' => {
                    run(rest, |c| c.is_ascii_alphanumeric() || c == '_', CelToken::Word)
                }
                '0'..='9' => run(rest, |c| c.is_ascii_digit(), CelToken::Number),
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

    fn take(&mut self, token: &CelToken) -> bool {
        let is_next = self.0.last() == Some(token);
        if is_next {
            self.0.pop();
        }
        is_next
    }

    fn word(&mut self) -> Option<String> {
        self.0.pop_if(|token| matches!(token, CelToken::Word(_))).map(CelToken::into_text)
    }

    fn number(&mut self) -> Option<String> {
        self.0.pop_if(|token| matches!(token, CelToken::Number(_))).map(CelToken::into_text)
    }

    fn text(&mut self) -> Option<String> {
        self.0.pop_if(|token| matches!(token, CelToken::Text(_))).map(CelToken::into_text)
    }

    fn end(&self) -> Result<(), ()> {
        if self.0.is_empty() { Ok(()) } else { Err(()) }
    }
}

impl CelToken {
    fn into_text(self) -> String {
        match self {
            CelToken::Word(text) | CelToken::Number(text) | CelToken::Text(text) => text,
            _ => String::new(),
        }
    }
}

fn run(rest: &str, belongs: impl Fn(char) -> bool, token: fn(String) -> CelToken) -> (CelToken, usize) {
    let length = rest.find(|c| !belongs(c)).unwrap_or(rest.len());
    (token(rest[..length].to_owned()), length)
}

/// A text in quotes.
fn literal(rest: &str, quote: char) -> Result<(CelToken, usize), String> {
    if rest.starts_with("\"\"\"") || rest.starts_with("'''") {
        return Err("a text in three quotes is not read".to_owned());
    }
    let mut text = String::new();
    let mut letters = rest.char_indices().skip(1);
    while let Some((at, letter)) = letters.next() {
        match letter {
            letter if letter == quote => return Ok((CelToken::Text(text), at + 1)),
            '\\' => match letters.next() {
                Some((_, escaped @ ('\\' | '"' | '\'' | '`' | '?'))) => text.push(escaped),
                _ => {
                    return Err(
                        "of escapes in a text only those of quotes and backslashes are read".to_owned()
                    );
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
    fn an_entry_may_be_asked_for_in_several_ways() {
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
    fn what_rules_cannot_say_is_told() {
        let refused = |text: &str, part: &str| {
            let said = equalities(text).unwrap_err();
            assert!(said.contains(part), "{text}: {said}");
        };
        refused("descriptors[1].method == 'GET'", "one descriptor at a time");
        refused("descriptors[0].method != 'GET'", "only ask");
        refused("descriptors[0].path.startsWith('/a')", "only ask");
        refused("a == 'x' || b == 'y'", "only ask");
        refused("!(a == 'x')", "only ask");
        refused("a == b", "only ask");
        refused("'a' == 'a'", "only ask");
        refused("a == 5", "in quotes");
        refused("a == ", "in quotes");
        refused("req_method == GET", "only ask");
        refused("limit.name == 'x'", "limit's own name");
        refused("descriptors[0] == 'x'", "name is missing");
        refused("a == 'x", "never closed");
        refused("a == 'x\\n'", "escapes");
        refused("a == '''x'''", "three quotes");
        refused("", "only ask");
        refused("true", "only ask");
        for text in ["a + b", "descriptors[0].a == 'x'", "'a'", "size(a)", "descriptors[0].a.b", "é"] {
            assert!(entry(text).is_err(), "{text}");
        }
    }
}
