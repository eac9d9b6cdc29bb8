//! Patterns for client keys and paths.

use crate::expression::Expression;
use crate::path::{PathStyle, normalise, unescape};
use crate::path_pattern_error::PathPatternError;
use crate::prefixed_regex::PrefixedRegex;
use std::fmt;
use std::sync::Arc;

/// A text in which `*` matches any sequence of characters, including none.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pattern {
    text: Box<str>,
}

impl Pattern {
    /// Creates a pattern. Every text is valid.
    pub fn new(text: &str) -> Pattern {
        Pattern { text: text.into() }
    }

    /// The text of the pattern.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the only text that it matches, or `None` if it contains a `*`.
    pub fn exact(&self) -> Option<&str> {
        (!self.text.contains('*')).then_some(&self.text)
    }

    /// The prefix of every text that it matches.
    pub fn prefix(&self) -> &str {
        self.text.split('*').next().unwrap_or_default()
    }

    /// The suffix of every text that it matches.
    pub fn suffix(&self) -> &str {
        self.text.rsplit('*').next().unwrap_or_default()
    }

    /// Whether it matches every text.
    pub fn is_any(&self) -> bool {
        !self.text.is_empty() && self.text.bytes().all(|byte| byte == b'*')
    }

    /// Whether it matches the text.
    pub fn matches(&self, text: &str) -> bool {
        let Some((prefix, rest)) = self.text.split_once('*') else { return *self.text == *text };
        let Some(mut text) = text.strip_prefix(prefix) else { return false };
        let (middle, suffix) = rest.rsplit_once('*').unwrap_or(("", rest));
        for piece in middle.split('*') {
            // The first occurrence is always right: a later one would leave less for the remaining pieces.
            let Some(at) = text.find(piece) else { return false };
            text = &text[at + piece.len()..];
        }
        text.ends_with(suffix)
    }

    /// Whether it matches every text that `other` matches. Returns `false` if that can't be proven.
    pub fn covers(&self, other: &Pattern) -> bool {
        // A `*` of `other` counts as a character that only a `*` of `self` can match.
        self.matches(&other.text)
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A pattern for paths in canonical form. Two are equal if they have the same kind and text.
#[derive(Clone, Debug)]
pub enum PathPattern {
    /// Exactly this path.
    Exact(Box<str>),
    /// `/users/{id}`: a name in braces matches one segment, `{*name}` at the end one or more.
    Template {
        /// In canonical form.
        text: Box<str>,
        /// What each segment must match.
        segments: Box<[Segment]>,
    },
    /// `*` matches characters within a segment, `**` characters across segments, and `?` one character within a
    /// segment.
    Glob {
        /// The text of the glob.
        text: Box<str>,
        /// The glob as a regular expression.
        regex: PrefixedRegex,
    },
    /// A regular expression, which may match anywhere in the path unless it is anchored.
    Regex {
        /// The text of the expression.
        text: Box<str>,
        /// The compiled expression.
        regex: PrefixedRegex,
    },
}

/// One segment of a template.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Segment {
    /// Exactly this segment.
    Literal(Box<str>),
    /// Any one segment.
    Any,
    /// One or more segments, up to the end of the path.
    Rest,
}

impl PathPattern {
    /// Parses a path, a template (if it has braces) or a glob (if it has `*` or `?`).
    ///
    /// # Errors
    /// If the text is invalid; the error says what to write instead.
    pub fn new(text: &str, style: PathStyle) -> Result<PathPattern, PathPatternError> {
        match (text.contains(['{', '}']), text.contains(['*', '?'])) {
            (true, _) => parse_template(text, style),
            (false, true) => parse_glob(text, style),
            (false, false) => Ok(PathPattern::Exact(normalise(text, style).into())),
        }
    }

    /// Compiles a regular expression.
    ///
    /// # Errors
    /// If the expression is invalid, or takes too much memory.
    pub fn regex(text: &str, style: PathStyle) -> Result<PathPattern, PathPatternError> {
        Ok(PathPattern::Regex { text: text.into(), regex: PrefixedRegex::new(text, style)? })
    }

    /// The text of the pattern; of a path or a template, in canonical form.
    pub fn as_str(&self) -> &str {
        match self {
            PathPattern::Exact(text)
            | PathPattern::Template { text, .. }
            | PathPattern::Glob { text, .. }
            | PathPattern::Regex { text, .. } => text,
        }
    }

    /// The kind of the pattern, as a word for messages.
    pub fn kind(&self) -> &'static str {
        match self {
            PathPattern::Exact(_) => "path",
            PathPattern::Template { .. } => "template",
            PathPattern::Glob { .. } => "glob",
            PathPattern::Regex { .. } => "regex",
        }
    }

    /// Whether it matches a path in canonical form.
    pub fn matches(&self, path: &str) -> bool {
        match self {
            PathPattern::Exact(text) => **text == *path,
            PathPattern::Template { segments, .. } => matches_segments(segments, path),
            PathPattern::Glob { regex, .. } | PathPattern::Regex { regex, .. } => regex.matches(path),
        }
    }

    /// The compiled expression that it matches with, which other patterns may share. Returns `None` if it needs none.
    pub(crate) fn expression(&self) -> Option<&Arc<Expression>> {
        match self {
            PathPattern::Glob { regex, .. } | PathPattern::Regex { regex, .. } => regex.tail(),
            PathPattern::Exact(_) | PathPattern::Template { .. } => None,
        }
    }

    /// Whether it matches every path that `other` matches. Returns `false` if that can't be proven.
    pub fn covers(&self, other: &PathPattern) -> bool {
        match (self, other) {
            (PathPattern::Regex { text, .. }, _)
                if matches!(&**text, "" | ".*" | "^.*" | "^.*$" | "^" | "^/" | "/") =>
            {
                true
            }
            (PathPattern::Glob { text, .. }, _) if matches!(&**text, "/**" | "**") => true,
            (_, PathPattern::Exact(text)) => self.matches(text),
            (PathPattern::Template { segments: own, .. }, PathPattern::Template { segments: others, .. }) => {
                covers_segments(own, others)
            }
            _ => self == other,
        }
    }
}

impl PartialEq for PathPattern {
    fn eq(&self, other: &PathPattern) -> bool {
        self.kind() == other.kind() && self.as_str() == other.as_str()
    }
}

fn matches_segments(segments: &[Segment], path: &str) -> bool {
    let mut found = path[1..].split('/');
    for segment in segments {
        match (segment, found.next()) {
            (Segment::Literal(text), Some(segment)) if **text == *segment => {}
            // The only path with an empty segment is the root.
            (Segment::Any, Some(segment)) if !segment.is_empty() => {}
            (Segment::Rest, Some(segment)) => return !segment.is_empty(),
            _ => return false,
        }
    }
    found.next().is_none()
}

fn covers_segments(own: &[Segment], others: &[Segment]) -> bool {
    let mut others = others.iter();
    for segment in own {
        match (segment, others.next()) {
            (Segment::Literal(own), Some(Segment::Literal(other))) if own == other => {}
            (Segment::Any, Some(Segment::Literal(_) | Segment::Any)) => {}
            (Segment::Rest, Some(_)) => return true,
            _ => return false,
        }
    }
    others.next().is_none()
}

fn parse_template(text: &str, style: PathStyle) -> Result<PathPattern, PathPatternError> {
    let mut segments = Vec::new();
    let mut canonical = String::new();
    let pieces: Vec<_> = text.split('/').filter(|piece| !piece.is_empty()).collect();
    for (index, piece) in pieces.iter().enumerate() {
        let name = piece.strip_prefix('{').and_then(|piece| piece.strip_suffix('}'));
        let segment = match name {
            Some(name) => match name.strip_prefix('*') {
                Some(name) if is_name(name) && index + 1 == pieces.len() => Segment::Rest,
                Some(name) if is_name(name) => return Err(PathPatternError::RestNotLast),
                None if is_name(name) => Segment::Any,
                _ => return Err(PathPatternError::InvalidName),
            },
            None if piece.contains(['{', '}']) => return Err(PathPatternError::PartialSegment),
            None if piece.contains(['*', '?']) => return Err(PathPatternError::TemplateAndGlob),
            None => match &normalise(piece, style)[1..] {
                "" => return Err(PathPatternError::DotSegments),
                segment => Segment::Literal(segment.into()),
            },
        };
        canonical.push('/');
        match &segment {
            Segment::Literal(literal) => canonical.push_str(literal),
            Segment::Any | Segment::Rest => canonical.push_str(piece),
        }
        segments.push(segment);
    }
    Ok(PathPattern::Template { text: canonical.into(), segments: segments.into() })
}

pub(crate) fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.'))
}

fn parse_glob(text: &str, style: PathStyle) -> Result<PathPattern, PathPatternError> {
    let text = text.trim_end_matches('/');
    let text = if text.starts_with('/') { text.to_owned() } else { format!("/{text}") };
    if text.contains("//") || text.split('/').any(|segment| matches!(segment, "." | "..")) {
        return Err(PathPatternError::DotSegments);
    }
    let mut expression = "^".to_owned();
    let mut rest = text.as_str();
    while let Some(at) = rest.find(['*', '?']) {
        expression.push_str(&regex_syntax::escape(&unescape(&rest[..at], style)));
        let wild = &rest[at..];
        let (piece, length) = match wild {
            wild if wild.starts_with("**/") && rest[..at].ends_with('/') => ("(?:.*/)?", 3),
            wild if wild.starts_with("**") => (".*", 2),
            wild if wild.starts_with('*') => ("[^/]*", 1),
            _ => ("[^/]", 1),
        };
        expression.push_str(piece);
        rest = &wild[length..];
    }
    expression.push_str(&regex_syntax::escape(&unescape(rest, style)));
    expression.push('$');
    let regex = PrefixedRegex::new(&expression, style)?;
    Ok(PathPattern::Glob { text: text.into(), regex })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> PathPattern {
        PathPattern::new(text, PathStyle::default()).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    fn regex(text: &str) -> PathPattern {
        PathPattern::regex(text, PathStyle::default()).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[track_caller]
    fn check(pattern: &PathPattern, yes: &[&str], no: &[&str]) {
        for text in yes {
            assert!(pattern.matches(text), "{pattern:?} should match {text}");
        }
        for text in no {
            assert!(!pattern.matches(text), "{pattern:?} should not match {text}");
        }
    }

    #[test]
    fn a_star_matches_any_characters() {
        let matches = |pattern: &str, text: &str| Pattern::new(pattern).matches(text);
        assert!(matches("sk_prod_*", "sk_prod_1") && matches("sk_prod_*", "sk_prod_"));
        assert!(!matches("sk_prod_*", "sk_pro") && !matches("sk_prod_*", "xsk_prod_1"));
        assert!(matches("*", "") && matches("*", "x") && matches("**", "x"));
        assert!(matches("a*b*c", "abc") && matches("a*b*c", "aXbYbZc"));
        assert!(!matches("a*b*c", "acb") && !matches("a*a", "a") && matches("a*a", "aa"));
        assert!(matches("*x*", "axb") && !matches("*x*", "ab"));
        assert!(matches("", "") && !matches("", "a"));
        assert!(matches("a?[b]", "a?[b]") && !matches("a?[b]", "axb"));
    }

    #[test]
    fn a_pattern_covers_narrower_ones() {
        let covers = |own: &str, other: &str| Pattern::new(own).covers(&Pattern::new(other));
        assert!(
            covers("*", "sk_*") && covers("sk_*", "sk_prod_*") && covers("sk_*", "sk_1") && covers("a", "a")
        );
        assert!(!covers("sk_prod_*", "sk_*") && !covers("sk_1", "sk_*") && !covers("*x", "*"));
        assert!(covers("*_vip", "sk_*_vip") && !covers("sk_*_vip", "*_vip"));
    }

    #[test]
    fn the_text_tells_paths_templates_and_globs_apart() {
        check(&path("/v1/orders/"), &["/v1/orders"], &["/v1/orders/1", "/v1"]);
        check(&path("users/{id}"), &["/users/7"], &["/users", "/users/7/x", "/user/7"]);
        check(&path("/{a}"), &["/x"], &["/", "/x/y"]);
        check(&path("/files/{*rest}"), &["/files/a", "/files/a/b"], &["/files", "/x"]);
        check(&path("/{*rest}"), &["/a", "/a/b"], &["/"]);
        check(&path("/v1/*/items"), &["/v1/a/items", "/v1//items"], &["/v1/a/b/items", "/v1/items"]);
        check(&path("/v1/**"), &["/v1/a", "/v1/a/b"], &["/v1", "/v2/a"]);
        check(&path("/v1/**/x"), &["/v1/x", "/v1/a/x", "/v1/a/b/x"], &["/v1/ax", "/v1"]);
        check(&path("/*.json"), &["/a.json", "/.json"], &["/a/b.json", "/a.jsonx"]);
        check(&path("/v?/a+b"), &["/v1/a+b"], &["/v10/a+b", "/v/a+b", "/v1/aab"]);
        check(&path("/caf%C3%A9/*"), &["/café/x"], &[]);
        check(&path("/%75sers/{id}"), &["/users/7"], &[]);
        check(&regex("^/v1/orders.*"), &["/v1/orders", "/v1/orders/7"], &["/x/v1/orders"]);
        check(&regex("orders"), &["/v1/orders"], &["/v1"]);
        assert_eq!(path("users//{id}/").as_str(), "/users/{id}");
        let folded = PathStyle { ignore_case: true, ..PathStyle::default() };
        check(&PathPattern::regex("^/V1", folded).unwrap(), &["/v1"], &[]);
        check(&PathPattern::new("/V1/{x}", folded).unwrap(), &["/v1/a"], &[]);
        check(&PathPattern::new("/V1/*", folded).unwrap(), &["/v1/a"], &[]);
    }

    #[test]
    fn invalid_patterns_are_rejected_with_advice() {
        let error = |text: &str| PathPattern::new(text, PathStyle::default()).unwrap_err();
        assert_eq!(error("/users/{}"), PathPatternError::InvalidName);
        assert_eq!(error("/users/{i d}"), PathPatternError::InvalidName);
        assert_eq!(error("/users/{id}.json"), PathPatternError::PartialSegment);
        assert_eq!(error("/users/{id"), PathPatternError::PartialSegment);
        assert_eq!(error("/{*rest}/x"), PathPatternError::RestNotLast);
        assert_eq!(error("/{id}/*"), PathPatternError::TemplateAndGlob);
        assert_eq!(error("/../{id}"), PathPatternError::DotSegments);
        assert_eq!(error("/./*"), PathPatternError::DotSegments);
        let error = |text: &str| PathPattern::regex(text, PathStyle::default()).unwrap_err().to_string();
        assert_eq!(error("(a"), "cannot read the regular expression: unclosed group");
        assert!(error("(?:a{1000}){1000}").contains("over 1 MB"));
    }

    #[test]
    fn a_path_pattern_covers_narrower_ones() {
        let covers = |own: PathPattern, other: PathPattern| own.covers(&other);
        assert!(covers(regex(".*"), path("/x/*")) && covers(path("/users/{id}"), path("/users/7")));
        assert!(covers(path("/users/{a}"), path("/users/{b}")) && covers(path("/{*rest}"), path("/a/{b}")));
        assert!(covers(path("/v1/*"), path("/v1/x")) && covers(path("/**"), regex("^/x")));
        assert!(!covers(path("/users/7"), path("/users/{id}")) && !covers(path("/v1/*"), path("/v1/**")));
        assert!(covers(regex("^/a"), regex("^/a")) && !covers(regex("^/a"), path("/b")));
    }
}
