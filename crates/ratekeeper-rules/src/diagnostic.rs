//! What is wrong with a file, and how it is shown.
//!
//! A complaint names a place and says what to write there instead. It is shown as compilers show theirs, with the line
//! it is about, or as JSON for other programs.

use crate::spec::Position;
use serde_json::{Value, json};
use std::fmt::Write as _;

/// How many complaints are kept. Whoever has more than that mends one and reads again.
const MOST: usize = 1_000;

/// How much of a line is shown, in columns.
const SHOWN_COLUMNS: usize = 100;

/// From how many bytes on a line is cut in JSON.
const LONG_LINE: usize = 1_000;

/// Whether a file can be used in spite of a complaint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// It can't: nothing of the file takes effect.
    Error,
    /// It can, and it may not do what was meant.
    Warning,
}

impl Severity {
    /// The word for it in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Severity::Error => "error",
            Severity::Warning => "warning",
        }
    }
}

/// What is wrong in one place, and what to write there instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// Whether the file can be used all the same.
    pub severity: Severity,
    /// Where; line 0 if it is about no line.
    pub place: Position,
    /// What, in words.
    pub said: String,
}

/// All complaints about a file as compilers write them: `FILE:LINE:COLUMN: error: what is wrong and what to write
/// instead`, then the line and a `^` under the place.
pub fn report(file: &str, text: &str, complaints: &[Diagnostic]) -> String {
    let mut source = SourceText::new(text);
    let mut report = String::new();
    for complaint in complaints {
        complaint.render(file, &mut source, &mut report);
    }
    report
}

/// All complaints about a file as a JSON list of objects with `file`, `line`, `column`, `severity`, `message` and
/// `source`, the line itself, or a part of it if it is very long. `line` and `column` are 0 and `source` is empty where
/// a complaint is about no line.
pub fn report_json(file: &str, text: &str, complaints: &[Diagnostic]) -> Value {
    let mut source = SourceText::new(text);
    let one = |complaint: &Diagnostic| {
        let shown = match source.seek(complaint.place) {
            Some((line, _)) if line.len() <= LONG_LINE => line.to_owned(),
            Some((line, at)) => excerpt(line, at).0,
            None => String::new(),
        };
        json!({
            "file": file,
            "line": complaint.place.line,
            "column": complaint.place.column,
            "severity": complaint.severity.name(),
            "message": complaint.said,
            "source": shown,
        })
    };
    complaints.iter().map(one).collect()
}

impl Diagnostic {
    fn render(&self, file: &str, source: &mut SourceText<'_>, report: &mut String) {
        let Position { line, column } = self.place;
        let place = if line == 0 { String::new() } else { format!("{line}:{column}:") };
        let (first, rest) = self.said.split_once('\n').unwrap_or((&self.said, ""));
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

/// A text in which places are sought from top to bottom, so that no line is gone through twice, however long it is.
struct SourceText<'t> {
    text: &'t str,
    /// What follows the line.
    rest: &'t str,
    line: &'t str,
    place: Position,
    /// Where in the line the place is, in bytes.
    at: usize,
}

impl<'t> SourceText<'t> {
    fn new(text: &'t str) -> SourceText<'t> {
        let text = text.trim_start_matches('\u{feff}');
        SourceText { text, rest: text, line: "", place: Position::default(), at: 0 }
    }

    /// The line of a place, and where in it the place is.
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
        let behind = &self.line[self.at..];
        self.at += behind.char_indices().nth(ahead).map_or(behind.len(), |(at, _)| at);
        self.place = place;
        (place.line > 0).then_some((self.line, self.at))
    }

    /// Lines as YAML counts them: a carriage return alone ends one too.
    fn next_line(&mut self) {
        let end = self.rest.find(['\n', '\r']).unwrap_or(self.rest.len());
        let (line, rest) = self.rest.split_at(end);
        self.rest = rest.strip_prefix("\r\n").or(rest.get(1..)).unwrap_or_default();
        self.line = line;
        self.place = Position { line: self.place.line + 1, column: 1 };
        self.at = 0;
    }
}

/// As much of a line as is shown around a place in it, and how many columns stand before the place.
fn excerpt(line: &str, at: usize) -> (String, usize) {
    // A place far to the right is shown in the middle, with what leads to it.
    let mut start = reach_back(line, at, SHOWN_COLUMNS * 4 / 5);
    if start > 0 {
        start = reach_back(line, at, SHOWN_COLUMNS / 2);
    }
    let mut shown = String::from(if start > 0 { "…" } else { "" });
    let before: usize = usize::from(start > 0) + line[start..at].chars().map(width).sum::<usize>();
    let mut columns = 0;
    for letter in line[start..].chars() {
        columns += width(letter);
        if columns > SHOWN_COLUMNS {
            shown.push('…');
            break;
        }
        match letter {
            '\t' => shown.push_str("    "),
            // What could move the cursor must not reach a terminal.
            letter if letter.is_control() => shown.push('\u{fffd}'),
            letter => shown.push(letter),
        }
    }
    (shown, before)
}

/// Where the text begins that stands so many columns before a place.
fn reach_back(line: &str, at: usize, most: usize) -> usize {
    let mut columns = 0;
    for (start, letter) in line[..at].char_indices().rev() {
        columns += width(letter);
        if columns > most {
            return start + letter.len_utf8();
        }
    }
    0
}

/// How many columns a terminal gives a character: a rough table, since it only puts a mark under a line.
fn width(letter: char) -> usize {
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

/// Complaints as they come together.
#[derive(Debug, Default)]
pub(crate) struct Diagnostics {
    kept: Vec<Diagnostic>,
    errors: usize,
    dropped: usize,
}

impl Diagnostics {
    pub(crate) fn error(&mut self, place: Position, said: impl Into<String>) {
        self.errors += 1;
        self.push(Severity::Error, place, said.into());
    }

    /// Notes that something can't be read for which there is a complaint already.
    pub(crate) fn broken(&mut self) {
        self.errors += 1;
    }

    pub(crate) fn warn(&mut self, place: Position, said: impl Into<String>) {
        self.push(Severity::Warning, place, said.into());
    }

    fn push(&mut self, severity: Severity, place: Position, said: String) {
        match self.kept.len() < MOST {
            true => self.kept.push(Diagnostic { severity, place, said }),
            false => self.dropped += 1,
        }
    }

    /// How many errors there are so far: reading a part made some if there are more of them behind it.
    pub(crate) fn errors(&self) -> usize {
        self.errors
    }

    /// All that were kept, from top to bottom, then how many were not.
    pub(crate) fn finish(mut self) -> Vec<Diagnostic> {
        self.kept.sort_by_key(|complaint| (complaint.place, complaint.severity));
        // An alias repeats what it stands for, and with it what is wrong there.
        self.kept.dedup();
        if self.dropped > 0 {
            let said = format!("{} more complaints are not shown: mend these first", self.dropped);
            let severity = if self.errors > 0 { Severity::Error } else { Severity::Warning };
            self.kept.push(Diagnostic { severity, place: Position::default(), said });
        }
        self.kept
    }
}

/// What somebody wrote, in quotes, and no more of it than one wants to read in a message.
pub(crate) fn quoted(text: &str) -> String {
    const SHOWN: usize = 40;
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{:?}", format!("{}…", &text[..end])),
        None => format!("{text:?}"),
    }
}

/// The known name that somebody may have meant, if one is near enough.
pub(crate) fn near<'n>(name: &str, known: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    let name: Vec<char> = name.to_lowercase().chars().take(65).collect();
    let most = match name.len() {
        0..=2 => 0,
        3..=5 => 1,
        6..=9 => 2,
        10..=64 => 3,
        _ => return None,
    };
    let measured =
        known.into_iter().map(|known| (distance(&name, &known.chars().collect::<Vec<_>>()), known));
    measured
        .filter(|(distance, _)| *distance <= most)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, known)| known)
}

/// How many letters must be added, removed, changed or swapped with their neighbour to make one word of another.
fn distance(a: &[char], b: &[char]) -> usize {
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let changed = above[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut least = changed.min(above[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(before[j - 2] + 1);
            }
            row.push(least);
        }
        before = std::mem::replace(&mut above, row);
    }
    above[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(line: &str, column: u32) -> String {
        let place = Position { line: 1, column };
        let complaint = Diagnostic { severity: Severity::Error, place, said: "no".to_owned() };
        report("f", line, &[complaint])
    }

    #[test]
    fn the_mark_stands_under_the_place() {
        assert_eq!(shown("limit: x", 8), "f:1:8: error: no\n    1 | limit: x\n      |        ^\n");
        assert_eq!(shown("\tx", 2), "f:1:2: error: no\n    1 |     x\n      |     ^\n");
        assert_eq!(shown("日本: x", 5), "f:1:5: error: no\n    1 | 日本: x\n      |       ^\n");
        assert_eq!(shown("a\u{1b}[2Jb", 1), "f:1:1: error: no\n    1 | a\u{fffd}[2Jb\n      | ^\n");
        let unplaced =
            Diagnostic { severity: Severity::Warning, place: Position::default(), said: "no".to_owned() };
        assert_eq!(report("f", "x", &[unplaced]), "f: warning: no\n");
    }

    #[test]
    fn a_long_line_is_cut_around_the_place() {
        let line = format!("{}here{}", "a".repeat(300), "b".repeat(300));
        let report = shown(&line, 301);
        let lines: Vec<_> = report.lines().collect();
        assert!(lines[1].starts_with("    1 | …aaa") && lines[1].ends_with("b…"), "{report}");
        assert!(lines[1].chars().count() <= SHOWN_COLUMNS + 10);
        let mark = lines[2].chars().position(|letter| letter == '^').unwrap();
        assert_eq!(lines[1].chars().skip(mark).take(4).collect::<String>(), "here");
        assert!(shown(&"a".repeat(300), 1).contains("a…\n      | ^"));
    }

    #[test]
    fn every_line_is_found_in_any_order() {
        let text = "a\nbb\r\nccc\rdddd\n";
        let said = |line, column| {
            let place = Position { line, column };
            let complaint = Diagnostic { severity: Severity::Error, place, said: String::new() };
            let all = [complaint.clone(), complaint];
            report_json("f", text, &all)[1]["source"].as_str().unwrap().to_owned()
        };
        assert_eq!([said(1, 1), said(2, 2), said(3, 9), said(4, 1)], ["a", "bb", "ccc", "dddd"]);
        assert_eq!([said(0, 0), said(5, 1), said(9, 9)], ["", "", ""]);
        let mut source = SourceText::new(text);
        for line in [4, 2, 3, 1, 1, 4] {
            let found = source.seek(Position { line, column: 2 }).unwrap().0;
            assert_eq!(found.len(), usize::try_from(line).unwrap());
        }
    }

    #[test]
    fn a_line_of_megabytes_is_gone_through_once() {
        let text = "x".repeat(4 << 20);
        let at = |column| Diagnostic {
            severity: Severity::Error,
            place: Position { line: 1, column },
            said: String::new(),
        };
        let all: Vec<_> = (0..1_000).map(|index| at(4_000_000 + index)).collect();
        assert!(report("f", &text, &all).len() < 300_000);
        assert!(report_json("f", &text, &all).to_string().len() < 1_000_000);
    }

    #[test]
    fn near_names_are_found_and_far_ones_are_not() {
        let known = ["limit", "limits", "algorithm", "id"];
        assert_eq!(near("limt", known), Some("limit"));
        assert_eq!(near("lmiit", known), Some("limit"));
        assert_eq!(near("Limit", known), Some("limit"));
        assert_eq!(near("algoritm", known), Some("algorithm"));
        assert_eq!(near("burst", known), None);
        assert_eq!(near("x", known), None);
        assert_eq!(near(&"x".repeat(1 << 20), known), None);
    }

    #[test]
    fn complaints_are_bounded_and_in_order() {
        let mut complaints = Diagnostics::default();
        for line in (1..2_000).rev() {
            complaints.warn(Position { line, column: 1 }, "no");
        }
        let complaints = complaints.finish();
        assert_eq!(complaints.len(), MOST + 1);
        assert!(complaints[..MOST].is_sorted_by_key(|complaint| complaint.place));
        assert_eq!(complaints[MOST].said, "999 more complaints are not shown: mend these first");
    }
}
