//! Diagnostics about rule files, and how they are shown.
//!
//! A diagnostic names a position and says what to write there instead. It is shown in the style of a compiler, with the
//! source line, or as JSON for programs.

use crate::spec::Position;
use serde_json::{Value, json};
use std::fmt::Write as _;

/// The maximum number of diagnostics that are kept. More would not help: the author fixes some and checks again.
const MAX_DIAGNOSTICS: usize = 1_000;

/// The maximum width of a source line in a report, in columns.
const MAX_COLUMNS: usize = 100;

/// Source lines longer than this many bytes are shortened in JSON.
const MAX_JSON_LINE: usize = 1_000;

/// Whether a diagnostic prevents the file from taking effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The file is invalid: no part of it takes effect.
    Error,
    /// The file is valid, but may not do what was intended.
    Warning,
}

impl Severity {
    /// The name used in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Severity::Error => "error",
            Severity::Warning => "warning",
        }
    }
}

/// A problem at one position in a file, and what to write there instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// Whether it is an error or a warning.
    pub severity: Severity,
    /// Where the problem is; line 0 if it does not refer to a line.
    pub place: Position,
    /// The message.
    pub message: String,
}

/// Formats the diagnostics about a file like a compiler does: `FILE:LINE:COLUMN: error: what is wrong and what to write
/// instead`, then the source line, and a `^` under the position.
pub fn report(file: &str, text: &str, diagnostics: &[Diagnostic]) -> String {
    let mut source = SourceText::new(text);
    let mut report = String::new();
    for diagnostic in diagnostics {
        diagnostic.render(file, &mut source, &mut report);
    }
    report
}

/// Formats the diagnostics about a file as a JSON list of objects with `file`, `line`, `column`, `severity`, `message`
/// and `source`: the source line, or a part of it if it is very long. If a diagnostic does not refer to a line, `line`
/// and `column` are 0 and `source` is empty.
pub fn report_json(file: &str, text: &str, diagnostics: &[Diagnostic]) -> Value {
    let mut source = SourceText::new(text);
    let one = |diagnostic: &Diagnostic| {
        let shown = match source.seek(diagnostic.place) {
            Some((line, _)) if line.len() <= MAX_JSON_LINE => line.to_owned(),
            Some((line, at)) => excerpt(line, at).0,
            None => String::new(),
        };
        json!({
            "file": file,
            "line": diagnostic.place.line,
            "column": diagnostic.place.column,
            "severity": diagnostic.severity.name(),
            "message": diagnostic.message,
            "source": shown,
        })
    };
    diagnostics.iter().map(one).collect()
}

impl Diagnostic {
    fn render(&self, file: &str, source: &mut SourceText<'_>, report: &mut String) {
        let Position { line, column } = self.place;
        let place = if line == 0 { String::new() } else { format!("{line}:{column}:") };
        let (first, rest) = self.message.split_once('\n').unwrap_or((&self.message, ""));
        // Writing into a string can't fail.
        let _ = writeln!(report, "{file}:{place} {}: {first}", self.severity.name());
        if let Some((shown, caret)) = source.seek(self.place).map(|(line, at)| excerpt(line, at)) {
            let _ = writeln!(report, "{line:>5} | {shown}");
            let _ = writeln!(report, "      | {:caret$}^", "");
        }
        for line in rest.lines() {
            let _ = writeln!(report, "        {line}");
        }
    }
}

/// A text with a cursor that looks up positions from top to bottom, so that no line is scanned twice, however long it
/// is.
struct SourceText<'t> {
    text: &'t str,
    /// The text after the current line.
    rest: &'t str,
    line: &'t str,
    place: Position,
    /// The byte offset of `place` in the line.
    offset: usize,
}

impl<'t> SourceText<'t> {
    fn new(text: &'t str) -> SourceText<'t> {
        let text = text.trim_start_matches('\u{feff}');
        SourceText { text, rest: text, line: "", place: Position::default(), offset: 0 }
    }

    /// The line at a position, and the byte offset of the position in it. Returns `None` if there is no such line.
    fn seek(&mut self, place: Position) -> Option<(&'t str, usize)> {
        if place < self.place {
            *self = SourceText::new(self.text);
        }
        while self.place.line < place.line {
            if self.rest.is_empty() && self.place.line > 0 {
                return None;
            }
            self.next_line();
        }
        let ahead = usize::try_from(place.column.saturating_sub(self.place.column)).unwrap_or(usize::MAX);
        let behind = &self.line[self.offset..];
        self.offset += behind.char_indices().nth(ahead).map_or(behind.len(), |(at, _)| at);
        self.place = place;
        (place.line > 0).then_some((self.line, self.offset))
    }

    /// Counts lines as YAML does: a carriage return alone also ends a line.
    fn next_line(&mut self) {
        let end = self.rest.find(['\n', '\r']).unwrap_or(self.rest.len());
        let (line, rest) = self.rest.split_at(end);
        self.rest = rest.strip_prefix("\r\n").or(rest.get(1..)).unwrap_or_default();
        self.line = line;
        self.place = Position { line: self.place.line + 1, column: 1 };
        self.offset = 0;
    }
}

/// The part of a line to show around a position, and the column of the position in it.
fn excerpt(line: &str, at: usize) -> (String, usize) {
    // A position far to the right is shown in the middle, with the text before it.
    let mut start = reach_back(line, at, MAX_COLUMNS * 4 / 5);
    if start > 0 {
        start = reach_back(line, at, MAX_COLUMNS / 2);
    }
    let mut shown = String::from(if start > 0 { "…" } else { "" });
    let before: usize = usize::from(start > 0) + line[start..at].chars().map(display_width).sum::<usize>();
    let mut columns = 0;
    for letter in line[start..].chars() {
        columns += display_width(letter);
        if columns > MAX_COLUMNS {
            shown.push('…');
            break;
        }
        match letter {
            '\t' => shown.push_str("    "),
            // Control characters must not reach a terminal: they could move its cursor.
            letter if letter.is_control() => shown.push('\u{fffd}'),
            letter => shown.push(letter),
        }
    }
    (shown, before)
}

/// The byte offset that is up to `most` columns before `at`.
fn reach_back(line: &str, at: usize, most: usize) -> usize {
    let mut columns = 0;
    for (start, letter) in line[..at].char_indices().rev() {
        columns += display_width(letter);
        if columns > most {
            return start + letter.len_utf8();
        }
    }
    0
}

/// The width of a character in a terminal. A rough table is enough, since it only places the caret.
fn display_width(letter: char) -> usize {
    match u32::from(letter) {
        0x09 => 4,
        0x300..=0x36f | 0x200b..=0x200f | 0xfe00..=0xfe0f => 0,
        0x1100..=0x115f
        | 0x2e80..=0xa4cf
        | 0xac00..=0xd7a3
        | 0xf900..=0xfaff
        | 0xfe30..=0xfe6f
        | 0xff00..=0xff60
        | 0xffe0..=0xffe6
        | 0x1f300..=0x1faff
        | 0x20000..=0x3fffd => 2,
        _ => 1,
    }
}

/// Collects the diagnostics about one file: at most 1 000 are kept, and the others are counted.
///
/// ```
/// use ratekeeper_rules::{Diagnostics, report, yaml};
///
/// let text = "http: 127.0.0.1:8080\nhttps: yes";
/// let mut diagnostics = Diagnostics::default();
/// let root = yaml::parse(text, &mut diagnostics).expect("it is valid YAML");
/// let yaml::YamlValue::Map(fields) = &root.value else { panic!("it is a map") };
/// diagnostics.error(fields[1].0.place, "there is no such field: leave it out");
/// let shown = report("f.yaml", text, &diagnostics.finish());
/// assert!(shown.starts_with("f.yaml:2:1: error: there is no such field"));
/// ```
#[derive(Debug, Default)]
pub struct Diagnostics {
    kept: Vec<Diagnostic>,
    errors: usize,
    dropped: usize,
}

impl Diagnostics {
    /// Adds an error at a position.
    pub fn error(&mut self, place: Position, message: impl Into<String>) {
        self.errors += 1;
        self.push(Severity::Error, place, message.into());
    }

    /// Adds an error about something that then counts as absent.
    pub fn reject<T>(&mut self, place: Position, message: impl Into<String>) -> Option<T> {
        self.error(place, message);
        None
    }

    /// Counts an error without a message, because the message was already reported.
    pub(crate) fn count_error(&mut self) {
        self.errors += 1;
    }

    /// Adds a warning at a position.
    pub fn warn(&mut self, place: Position, message: impl Into<String>) {
        self.push(Severity::Warning, place, message.into());
    }

    fn push(&mut self, severity: Severity, place: Position, message: String) {
        if self.kept.len() < MAX_DIAGNOSTICS {
            self.kept.push(Diagnostic { severity, place, message });
        } else {
            self.dropped += 1;
        }
    }

    /// The number of errors so far. If it has grown after a part was read, that part has errors.
    pub fn errors(&self) -> usize {
        self.errors
    }

    /// The collected diagnostics, sorted by position, and a last one with the number of dropped ones, if any.
    pub fn finish(mut self) -> Vec<Diagnostic> {
        self.kept.sort_by_key(|diagnostic| (diagnostic.place, diagnostic.severity));
        // An alias repeats the value that it refers to, and thus its errors.
        self.kept.dedup();
        if self.dropped > 0 {
            let message = format!("{} more problems are not shown: fix these first", self.dropped);
            let severity = if self.errors > 0 { Severity::Error } else { Severity::Warning };
            self.kept.push(Diagnostic { severity, place: Position::default(), message });
        }
        self.kept
    }
}

/// Quotes a text from the file for use in a message, and shortens it if it is long.
pub fn quoted(text: &str) -> String {
    const SHOWN: usize = 40;
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{:?}", format!("{}…", &text[..end])),
        None => format!("{text:?}"),
    }
}

/// Returns the known name (in lower case) closest to a misspelled one, or `None` if none is close enough.
///
/// ```
/// use ratekeeper_rules::closest_name;
///
/// assert_eq!(closest_name("htpp", ["http", "grpc"]), Some("http"));
/// assert_eq!(closest_name("quic", ["http", "grpc"]), None);
/// ```
pub fn closest_name<'n>(name: &str, known: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    let name: String = name.to_lowercase().chars().take(65).collect();
    let most = match name.chars().count() {
        0..=2 => 0,
        3..=5 => 1,
        6..=9 => 2,
        10..=64 => 3,
        _ => return None,
    };
    let distances = known.into_iter().map(|known| (strsim::osa_distance(&name, known), known));
    let near = distances.filter(|(distance, _)| *distance <= most).min_by_key(|(distance, _)| *distance);
    near.map(|(_, known)| known)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(line: &str, column: u32) -> String {
        let place = Position { line: 1, column };
        let diagnostic = Diagnostic { severity: Severity::Error, place, message: "no".to_owned() };
        report("f", line, &[diagnostic])
    }

    #[test]
    fn the_caret_is_under_the_position() {
        assert_eq!(shown("limit: x", 8), "f:1:8: error: no\n    1 | limit: x\n      |        ^\n");
        assert_eq!(shown("\tx", 2), "f:1:2: error: no\n    1 |     x\n      |     ^\n");
        assert_eq!(shown("日本: x", 5), "f:1:5: error: no\n    1 | 日本: x\n      |       ^\n");
        assert_eq!(shown("a\u{1b}[2Jb", 1), "f:1:1: error: no\n    1 | a\u{fffd}[2Jb\n      | ^\n");
        let unplaced =
            Diagnostic { severity: Severity::Warning, place: Position::default(), message: "no".to_owned() };
        assert_eq!(report("f", "x", &[unplaced]), "f: warning: no\n");
    }

    #[test]
    fn a_long_line_is_shortened_around_the_position() {
        let line = format!("{}here{}", "a".repeat(300), "b".repeat(300));
        let report = shown(&line, 301);
        let lines: Vec<_> = report.lines().collect();
        assert!(lines[1].starts_with("    1 | …aaa") && lines[1].ends_with("b…"), "{report}");
        assert!(lines[1].chars().count() <= MAX_COLUMNS + 10);
        let caret = lines[2].chars().position(|letter| letter == '^').unwrap();
        assert_eq!(lines[1].chars().skip(caret).take(4).collect::<String>(), "here");
        assert!(shown(&"a".repeat(300), 1).contains("a…\n      | ^"));
    }

    #[test]
    fn every_line_is_found_in_any_order() {
        let text = "a\nbb\r\nccc\rdddd\n";
        let source_of = |line, column| {
            let place = Position { line, column };
            let diagnostic = Diagnostic { severity: Severity::Error, place, message: String::new() };
            let all = [diagnostic.clone(), diagnostic];
            report_json("f", text, &all)[1]["source"].as_str().unwrap().to_owned()
        };
        let found = [source_of(1, 1), source_of(2, 2), source_of(3, 9), source_of(4, 1)];
        assert_eq!(found, ["a", "bb", "ccc", "dddd"]);
        assert_eq!([source_of(0, 0), source_of(5, 1), source_of(9, 9)], ["", "", ""]);
        let mut source = SourceText::new(text);
        for line in [4, 2, 3, 1, 1, 4] {
            let found = source.seek(Position { line, column: 2 }).unwrap().0;
            assert_eq!(found.len(), usize::try_from(line).unwrap());
        }
    }

    #[test]
    fn a_line_of_megabytes_is_scanned_once() {
        let text = "x".repeat(4 << 20);
        let at = |column| Diagnostic {
            severity: Severity::Error,
            place: Position { line: 1, column },
            message: String::new(),
        };
        let all: Vec<_> = (0..1_000).map(|index| at(4_000_000 + index)).collect();
        assert!(report("f", &text, &all).len() < 300_000);
        assert!(report_json("f", &text, &all).to_string().len() < 1_000_000);
    }

    #[test]
    fn only_similar_names_are_suggested() {
        let known = ["limit", "limits", "algorithm", "id"];
        assert_eq!(closest_name("limt", known), Some("limit"));
        assert_eq!(closest_name("lmiit", known), Some("limit"));
        assert_eq!(closest_name("Limit", known), Some("limit"));
        assert_eq!(closest_name("algoritm", known), Some("algorithm"));
        assert_eq!(closest_name("burst", known), None);
        assert_eq!(closest_name("x", known), None);
        assert_eq!(closest_name("", ["log"]), None);
        assert_eq!(closest_name("max-keys", ["max_keys", "max_batch"]), Some("max_keys"));
        assert_eq!(closest_name("colour", ["log", "http"]), None);
        assert_eq!(closest_name(&"x".repeat(1 << 20), known), None);
    }

    #[test]
    fn diagnostics_are_bounded_and_sorted() {
        let mut diagnostics = Diagnostics::default();
        for line in (1..2_000).rev() {
            diagnostics.warn(Position { line, column: 1 }, "no");
        }
        let diagnostics = diagnostics.finish();
        assert_eq!(diagnostics.len(), MAX_DIAGNOSTICS + 1);
        assert!(diagnostics[..MAX_DIAGNOSTICS].is_sorted_by_key(|diagnostic| diagnostic.place));
        assert_eq!(diagnostics[MAX_DIAGNOSTICS].message, "999 more problems are not shown: fix these first");
    }
}
