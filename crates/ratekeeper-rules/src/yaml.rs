//! YAML as a tree in which every value knows its place.
//!
//! Nothing is interpreted yet: a scalar is its text, and two fields of one name are both there, so that whoever reads
//! the tree can complain of all that is wrong at once. Aliases stand for copies of what they name, and `<<` brings the
//! fields of another map. What a file can stand for is bounded, however its aliases multiply.

use crate::diagnostic::{Diagnostics, quoted};
use crate::spec::Position;
use granit_parser::{ErrorKind, Event, Marker, Parser, ScalarStyle, ScanError, Span, Tag, options};
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

/// The longest text that is read.
const MOST_BYTES: usize = 16 << 20;
/// How many values a file may stand for. The largest file of rules that is read has fewer.
const MOST_VALUES: usize = 4_000_000;
/// How deep values may be nested, aliases followed. Rules need six levels.
const MOST_LEVELS: usize = 32;

/// A value and where it was written.
#[derive(Clone, Debug)]
pub(crate) struct YamlNode<'t> {
    pub(crate) place: Position,
    pub(crate) value: YamlValue<'t>,
}

/// What a node is.
#[derive(Clone, Debug)]
pub(crate) enum YamlValue<'t> {
    /// A single value. Without quotes it may be a number, `true`, or nothing at all.
    Scalar { text: Cow<'t, str>, is_plain: bool },
    /// A list.
    List(Vec<YamlNode<'t>>),
    /// Names and values, in order; a name may be there twice.
    Map(Vec<(YamlNode<'t>, YamlNode<'t>)>),
    /// Something that has been complained of already.
    Broken,
}

impl<'t> YamlNode<'t> {
    /// Whether nothing was written.
    pub(crate) fn is_null(&self) -> bool {
        let YamlValue::Scalar { text, is_plain: true } = &self.value else { return false };
        matches!(&**text, "" | "~" | "null" | "Null" | "NULL")
    }

    /// Its text, if it is a single value.
    pub(crate) fn text(&self) -> Option<&str> {
        match &self.value {
            YamlValue::Scalar { text, .. } if !self.is_null() => Some(text),
            _ => None,
        }
    }

    /// Its text, if it is a single value without quotes.
    pub(crate) fn plain(&self) -> Option<&str> {
        match &self.value {
            YamlValue::Scalar { is_plain: true, .. } => self.text(),
            _ => None,
        }
    }

    /// What it is, in a word.
    pub(crate) fn kind(&self) -> &'static str {
        match &self.value {
            YamlValue::Scalar { .. } if self.is_null() => "nothing",
            YamlValue::Scalar { .. } | YamlValue::Broken => "a single value",
            YamlValue::List(_) => "a list",
            YamlValue::Map(_) => "fields",
        }
    }

    fn is_merge(&self) -> bool {
        self.plain() == Some("<<")
    }

    /// How many values it stands for, itself included.
    fn size(&self) -> usize {
        match &self.value {
            YamlValue::Scalar { .. } | YamlValue::Broken => 1,
            YamlValue::List(items) => 1 + items.iter().map(YamlNode::size).sum::<usize>(),
            YamlValue::Map(pairs) => {
                1 + pairs.iter().map(|(name, value)| name.size() + value.size()).sum::<usize>()
            }
        }
    }

    /// How many levels it has.
    fn height(&self) -> usize {
        match &self.value {
            YamlValue::Scalar { .. } | YamlValue::Broken => 0,
            YamlValue::List(items) => 1 + items.iter().map(YamlNode::height).max().unwrap_or(0),
            YamlValue::Map(pairs) => {
                1 + pairs.iter().map(|(name, value)| name.height().max(value.height())).max().unwrap_or(0)
            }
        }
    }
}

/// Reads a document into a tree: nothing if the file is empty, or if it can't be read and there is a complaint.
pub(crate) fn parse<'t>(text: &'t str, complaints: &mut Diagnostics) -> Option<YamlNode<'t>> {
    build(text, 1, complaints)?.pop()
}

/// Reads all documents of a file into trees: nothing if one can't be read and there is a complaint.
pub(crate) fn parse_all<'t>(text: &'t str, complaints: &mut Diagnostics) -> Option<Vec<YamlNode<'t>>> {
    build(text, usize::MAX, complaints)
}

fn build<'t>(
    text: &'t str,
    most_documents: usize,
    complaints: &mut Diagnostics,
) -> Option<Vec<YamlNode<'t>>> {
    let mut builder = YamlBuilder::default();
    match builder.build(text, most_documents) {
        Ok(()) => {
            for (place, said) in builder.complaints {
                complaints.error(place, said);
            }
            Some(builder.roots)
        }
        Err((place, said)) => {
            complaints.error(place, said);
            None
        }
    }
}

/// What ends the reading, or is wrong in one place.
type YamlError = (Position, String);

#[derive(Default)]
struct YamlBuilder<'t> {
    /// The lists and maps that are not at their end yet, outermost first.
    open: Vec<OpenCollection<'t>>,
    /// The documents that are at their end.
    roots: Vec<YamlNode<'t>>,
    /// What each anchor names, once it is at its end.
    anchors: HashMap<usize, YamlNode<'t>>,
    /// How many values there are.
    values: usize,
    complaints: Vec<YamlError>,
}

/// A list or map that is not at its end yet.
struct OpenCollection<'t> {
    place: Position,
    is_map: bool,
    anchor: usize,
    /// Of a map, names and values by turns.
    items: Vec<YamlNode<'t>>,
}

impl<'t> YamlBuilder<'t> {
    fn build(&mut self, text: &'t str, most_documents: usize) -> Result<(), YamlError> {
        if text.len() > MOST_BYTES {
            let said = format!("a file has at most {} MiB: split it", MOST_BYTES >> 20);
            return Err((Position::default(), said));
        }
        let options = options! {
            emit_comments: false,
            emit_unresolved_aliases: true,
            flow_nesting_limit: MOST_LEVELS,
            block_nesting_limit: MOST_LEVELS,
        };
        let mut documents = 0;
        for event in Parser::new_from_str_with_options(text, options) {
            let (event, span) = event.map_err(|error| explain(&error))?;
            if matches!(event, Event::DocumentStart(..)) {
                documents += 1;
            }
            if documents > most_documents {
                let said = "a file is one document: leave this --- out and write everything into one";
                return Err((place(span.start), said.to_owned()));
            }
            self.take(event, span)?;
        }
        Ok(())
    }

    fn take(&mut self, event: Event<'t>, span: Span) -> Result<(), YamlError> {
        let place = place(span.start);
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let is_text = self.complain_of_tag(tag.as_deref(), place);
                let is_plain = style == ScalarStyle::Plain && !is_text;
                self.add(YamlNode { place, value: YamlValue::Scalar { text, is_plain } }, anchor)
            }
            Event::SequenceStart(_, anchor, tag) => {
                self.complain_of_tag(tag.as_deref(), place);
                self.enter(OpenCollection { place, is_map: false, anchor, items: Vec::new() })
            }
            Event::MappingStart(_, anchor, tag) => {
                self.complain_of_tag(tag.as_deref(), place);
                self.enter(OpenCollection { place, is_map: true, anchor, items: Vec::new() })
            }
            Event::SequenceEnd | Event::MappingEnd => self.leave(),
            Event::Alias(anchor) => self.copy(anchor, place),
            Event::UnresolvedAlias(name) => {
                let said = format!(
                    "nothing before this is named &{name}; text that begins with * needs quotes: \
                     write \"*{name}\""
                );
                self.complaints.push((place, said));
                self.add(YamlNode { place, value: YamlValue::Broken }, 0)
            }
            _ => Ok(()),
        }
    }

    /// Whether the tag says that a scalar is text. Of the others, those that only say what is plain to see may stand.
    fn complain_of_tag(&mut self, tag: Option<&Tag>, place: Position) -> bool {
        let Some(tag) = tag else { return false };
        if tag.is_custom() && tag.original() != "!" {
            let said = format!("the tag {} means nothing here: leave it out", quoted(&tag.original()));
            self.complaints.push((place, said));
        }
        tag.is_yaml_core_schema_tag("str") || tag.is_custom()
    }

    fn enter(&mut self, open: OpenCollection<'t>) -> Result<(), YamlError> {
        if self.open.len() == MOST_LEVELS {
            return Err((open.place, too_deep()));
        }
        self.open.push(open);
        Ok(())
    }

    fn leave(&mut self) -> Result<(), YamlError> {
        let Some(open) = self.open.pop() else { return Ok(()) };
        let value = match open.is_map {
            true => YamlValue::Map(self.merge(pair(open.items))),
            false => YamlValue::List(open.items),
        };
        self.add(YamlNode { place: open.place, value }, open.anchor)
    }

    fn copy(&mut self, anchor: usize, place: Position) -> Result<(), YamlError> {
        let Some(named) = self.anchors.get(&anchor) else {
            let said = "an alias can't stand inside of what it names: write out what is meant";
            self.complaints.push((place, said.to_owned()));
            return self.add(YamlNode { place, value: YamlValue::Broken }, 0);
        };
        if self.open.len() + named.height() > MOST_LEVELS {
            return Err((place, too_deep()));
        }
        let size = named.size();
        self.spend(size, place)?;
        let copy = self.anchors[&anchor].clone();
        self.add(copy, 0)
    }

    fn add(&mut self, node: YamlNode<'t>, anchor: usize) -> Result<(), YamlError> {
        self.spend(1, node.place)?;
        if anchor != 0 {
            self.spend(node.size(), node.place)?;
            self.anchors.insert(anchor, node.clone());
        }
        match self.open.last_mut() {
            Some(open) => open.items.push(node),
            None => self.roots.push(node),
        }
        Ok(())
    }

    fn spend(&mut self, values: usize, place: Position) -> Result<(), YamlError> {
        self.values += values;
        match self.values <= MOST_VALUES {
            true => Ok(()),
            false => {
                let said = format!(
                    "the file stands for more than {MOST_VALUES} values, those that aliases repeat included: \
                     split it, or write fewer aliases of aliases"
                );
                Err((place, said))
            }
        }
    }

    /// Puts in place of `<<` the fields of what it names that the map does not have itself.
    fn merge(&mut self, pairs: Vec<(YamlNode<'t>, YamlNode<'t>)>) -> Vec<(YamlNode<'t>, YamlNode<'t>)> {
        if !pairs.iter().any(|(name, _)| name.is_merge()) {
            return pairs;
        }
        let (merges, mut own): (Vec<_>, Vec<_>) = pairs.into_iter().partition(|(name, _)| name.is_merge());
        let mut names: HashSet<String> =
            own.iter().filter_map(|(name, _)| name.text().map(str::to_owned)).collect();
        for (_, value) in merges {
            let sources = match value.value {
                YamlValue::List(items) => items,
                _ => vec![value],
            };
            for source in sources {
                let YamlValue::Map(pairs) = source.value else {
                    if !matches!(source.value, YamlValue::Broken) {
                        let said = "<< takes the fields of another map: write <<: *name, where name: &name \
                                    {…} stands above";
                        self.complaints.push((source.place, said.to_owned()));
                    }
                    continue;
                };
                own.extend(
                    pairs
                        .into_iter()
                        .filter(|(name, _)| name.text().is_none_or(|text| names.insert(text.to_owned()))),
                );
            }
        }
        own
    }
}

fn pair<'t>(items: Vec<YamlNode<'t>>) -> Vec<(YamlNode<'t>, YamlNode<'t>)> {
    let mut pairs = Vec::with_capacity(items.len() / 2);
    let mut items = items.into_iter();
    while let (Some(name), Some(value)) = (items.next(), items.next()) {
        pairs.push((name, value));
    }
    pairs
}

fn place(marker: Marker) -> Position {
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    Position { line: count(marker.line()), column: count(marker.col()).saturating_add(1) }
}

fn too_deep() -> String {
    format!("values are nested more than {MOST_LEVELS} levels deep: rules need six")
}

/// What keeps a file from being YAML, and what to write instead.
fn explain(error: &ScanError) -> YamlError {
    let said = match error.kind() {
        ErrorKind::MappingValueNotAllowed | ErrorKind::InvalidColonPlacement => {
            "a field can't begin here: indent it like the fields beside it, and put text that has a colon \
             and a space in quotes"
        }
        ErrorKind::ExpectedBlockMappingKey
        | ErrorKind::InvalidIndentation
        | ErrorKind::ExpectedBlockSequenceEntry
        | ErrorKind::BlockSequenceEntryNotAllowed => {
            "this does not line up with what is above it: indent a field like those beside it, and begin \
             each entry of a list \
             with - under the one before"
        }
        ErrorKind::TabNotAllowed
        | ErrorKind::TabInBlockIndentation
        | ErrorKind::TabInIndentation
        | ErrorKind::TabInPlainScalar
        | ErrorKind::TabAtBlockScalarStart => "YAML is not indented with tabs: use spaces",
        ErrorKind::SimpleKeyExpected | ErrorKind::InvalidSimpleKey => {
            "this is no field: write a name, a colon and a space before its value, like limit: 100/min"
        }
        ErrorKind::UnclosedQuotedScalar => "a quote is opened here and never closed: close it",
        ErrorKind::InvalidQuotedScalarIndent => {
            "a quote that was opened above is still open here: close it where the text ends"
        }
        ErrorKind::InvalidTrailingSingleQuotedScalar | ErrorKind::InvalidTrailingDoubleQuotedScalar => {
            "there is more behind the closing quote: put all of the value between the quotes"
        }
        ErrorKind::UnknownQuotedScalarEscape => {
            "there is no such escape in double quotes: write \\\\ for a backslash, or use single quotes"
        }
        ErrorKind::ExpectedFlowMappingSeparator | ErrorKind::UnexpectedEofFlowMapping => {
            "the braces are not in order: write {name: value, name: value}, with a comma between fields and \
             } at the end"
        }
        ErrorKind::ExpectedFlowSequenceSeparator | ErrorKind::UnexpectedEofFlowSequence => {
            "the brackets are not in order: write [one, another], with a comma between entries and ] at the \
             end"
        }
        ErrorKind::UnclosedFlowCollection { open } => {
            let close = if *open == '[' { ']' } else { '}' };
            return (place(*error.marker()), format!("{open} is opened here and never closed: add {close}"));
        }
        ErrorKind::MissingAnchorOrAliasName => {
            "* and & have a meaning of their own where a value begins: put the value in quotes, like \"*\""
        }
        ErrorKind::UnexpectedCharacter { character } => {
            let said = format!("a value can't begin with {character:?}: put it in quotes");
            return (place(*error.marker()), said);
        }
        ErrorKind::RecursionLimitExceeded => return (place(*error.marker()), too_deep()),
        kind => {
            let said = format!("this is not YAML: {kind}");
            return (place(*error.marker()), said);
        }
    };
    (place(*error.marker()), said.to_owned())
}
