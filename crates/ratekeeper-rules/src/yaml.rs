//! Parses YAML into a tree in which every value knows its position.
//!
//! The tree is not interpreted: a scalar is text, and duplicate fields are all kept, so that the reader of the tree can
//! report all problems at once. Aliases are expanded to copies, and `<<` merges the fields of another map. The size of
//! the expanded tree is bounded, however deeply aliases are nested.

use crate::diagnostic::{Diagnostics, quoted};
use crate::spec::Position;
use granit_parser::{ErrorKind, Event, Marker, Parser, ScalarStyle, ScanError, Span, Tag, options};
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

/// The maximum size of a file, in bytes.
const MAX_BYTES: usize = 16 << 20;
/// The maximum number of values after alias expansion. The largest valid rule file has fewer.
const MAX_VALUES: usize = 4_000_000;
/// The maximum nesting depth after alias expansion. Rules need six levels.
const MAX_LEVELS: usize = 32;

/// A YAML value and its position in the file.
#[derive(Clone, Debug)]
pub struct YamlNode<'t> {
    /// Where the value begins.
    pub place: Position,
    /// The value.
    pub value: YamlValue<'t>,
}

/// The content of a [`YamlNode`].
#[derive(Clone, Debug)]
pub enum YamlValue<'t> {
    /// A single value. A plain one (without quotes) may be a number, a boolean, or null.
    Scalar {
        /// The text, without quotes and escapes.
        text: Cow<'t, str>,
        /// Whether it was written without quotes.
        is_plain: bool,
    },
    /// A sequence.
    List(Vec<YamlNode<'t>>),
    /// Names and values, in file order; a name may appear twice.
    Map(Vec<(YamlNode<'t>, YamlNode<'t>)>),
    /// A value whose error has already been reported.
    Broken,
}

impl<'t> YamlNode<'t> {
    /// Whether the value is empty or null.
    pub fn is_null(&self) -> bool {
        let YamlValue::Scalar { text, is_plain: true } = &self.value else { return false };
        matches!(&**text, "" | "~" | "null" | "Null" | "NULL")
    }

    /// The text of a single value. Returns `None` for null, lists and maps.
    pub fn text(&self) -> Option<&str> {
        match &self.value {
            YamlValue::Scalar { text, .. } if !self.is_null() => Some(text),
            _ => None,
        }
    }

    /// The text of a single value without quotes. Returns `None` for any other value.
    pub fn plain(&self) -> Option<&str> {
        match &self.value {
            YamlValue::Scalar { is_plain: true, .. } => self.text(),
            _ => None,
        }
    }

    /// The kind of the value, for use in messages.
    pub fn kind(&self) -> &'static str {
        match &self.value {
            YamlValue::Scalar { .. } if self.is_null() => "an empty value",
            YamlValue::Scalar { .. } | YamlValue::Broken => "a single value",
            YamlValue::List(_) => "a list",
            YamlValue::Map(_) => "a map",
        }
    }

    fn is_merge(&self) -> bool {
        self.plain() == Some("<<")
    }

    /// The number of values in this subtree, including the node itself.
    fn size(&self) -> usize {
        match &self.value {
            YamlValue::Scalar { .. } | YamlValue::Broken => 1,
            YamlValue::List(items) => 1 + items.iter().map(YamlNode::size).sum::<usize>(),
            YamlValue::Map(pairs) => {
                1 + pairs.iter().map(|(name, value)| name.size() + value.size()).sum::<usize>()
            }
        }
    }

    /// The nesting depth of this subtree; 0 for a single value.
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

/// Parses a file that has at most one document. Returns `None` if the file is empty, or invalid, which is reported.
pub fn parse<'t>(text: &'t str, diagnostics: &mut Diagnostics) -> Option<YamlNode<'t>> {
    build(text, 1, diagnostics)?.pop()
}

/// Parses all documents of a file. Returns `None` if one is invalid, which is reported.
pub fn parse_all<'t>(text: &'t str, diagnostics: &mut Diagnostics) -> Option<Vec<YamlNode<'t>>> {
    build(text, usize::MAX, diagnostics)
}

fn build<'t>(
    text: &'t str,
    most_documents: usize,
    diagnostics: &mut Diagnostics,
) -> Option<Vec<YamlNode<'t>>> {
    let mut builder = YamlBuilder::default();
    match builder.build(text, most_documents) {
        Ok(()) => {
            for (place, message) in builder.errors {
                diagnostics.error(place, message);
            }
            Some(builder.roots)
        }
        Err((place, message)) => {
            diagnostics.error(place, message);
            None
        }
    }
}

/// A position and an error message. As the `Err` of a `Result`, it ends parsing.
type YamlError = (Position, String);

/// Builds trees from parser events.
#[derive(Default)]
struct YamlBuilder<'t> {
    /// The unclosed lists and maps, outermost first.
    open: Vec<OpenCollection<'t>>,
    /// The roots of the complete documents.
    roots: Vec<YamlNode<'t>>,
    /// The value of each anchor, once it is complete.
    anchors: HashMap<usize, YamlNode<'t>>,
    /// The number of values so far, after alias expansion.
    values: usize,
    /// Errors that don't end parsing.
    errors: Vec<YamlError>,
}

/// An unclosed list or map.
struct OpenCollection<'t> {
    place: Position,
    is_map: bool,
    anchor: usize,
    /// The items of a list; for a map, names and values alternate.
    items: Vec<YamlNode<'t>>,
}

impl<'t> YamlBuilder<'t> {
    fn build(&mut self, text: &'t str, most_documents: usize) -> Result<(), YamlError> {
        if text.len() > MAX_BYTES {
            let message = format!("a file can have at most {} MiB: split it", MAX_BYTES >> 20);
            return Err((Position::default(), message));
        }
        let options = options! {
            emit_comments: false,
            emit_unresolved_aliases: true,
            flow_nesting_limit: MAX_LEVELS,
            block_nesting_limit: MAX_LEVELS,
        };
        let mut documents = 0;
        for event in Parser::new_from_str_with_options(text, options) {
            let (event, span) = event.map_err(|error| explain_scan_error(&error))?;
            if matches!(event, Event::DocumentStart(..)) {
                documents += 1;
            }
            if documents > most_documents {
                let message = "the file must be a single YAML document: leave this --- out and put everything in one \
                               document";
                return Err((place(span.start), message.to_owned()));
            }
            self.on_event(event, span)?;
        }
        Ok(())
    }

    fn on_event(&mut self, event: Event<'t>, span: Span) -> Result<(), YamlError> {
        let place = place(span.start);
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let is_text = self.check_tag(tag.as_deref(), place);
                let is_plain = style == ScalarStyle::Plain && !is_text;
                self.add(YamlNode { place, value: YamlValue::Scalar { text, is_plain } }, anchor)
            }
            Event::SequenceStart(_, anchor, tag) => {
                self.check_tag(tag.as_deref(), place);
                self.open_collection(OpenCollection { place, is_map: false, anchor, items: Vec::new() })
            }
            Event::MappingStart(_, anchor, tag) => {
                self.check_tag(tag.as_deref(), place);
                self.open_collection(OpenCollection { place, is_map: true, anchor, items: Vec::new() })
            }
            Event::SequenceEnd | Event::MappingEnd => self.close_collection(),
            Event::Alias(anchor) => self.expand_alias(anchor, place),
            Event::UnresolvedAlias(name) => {
                let message = format!(
                    "there is no anchor &{name} above; text that begins with * needs quotes: write \"*{name}\""
                );
                self.errors.push((place, message));
                self.add(YamlNode { place, value: YamlValue::Broken }, 0)
            }
            _ => Ok(()),
        }
    }

    /// Checks a tag. Returns whether it makes a scalar text. Other core schema tags are redundant, and are ignored.
    fn check_tag(&mut self, tag: Option<&Tag>, place: Position) -> bool {
        let Some(tag) = tag else { return false };
        if tag.is_custom() && tag.original() != "!" {
            let message = format!("the tag {} is not supported: leave it out", quoted(&tag.original()));
            self.errors.push((place, message));
        }
        tag.is_yaml_core_schema_tag("str") || tag.is_custom()
    }

    fn open_collection(&mut self, open: OpenCollection<'t>) -> Result<(), YamlError> {
        if self.open.len() == MAX_LEVELS {
            return Err((open.place, too_deep()));
        }
        self.open.push(open);
        Ok(())
    }

    fn close_collection(&mut self) -> Result<(), YamlError> {
        let Some(open) = self.open.pop() else { return Ok(()) };
        let value = if open.is_map {
            YamlValue::Map(self.merge(pair(open.items)))
        } else {
            YamlValue::List(open.items)
        };
        self.add(YamlNode { place: open.place, value }, open.anchor)
    }

    fn expand_alias(&mut self, anchor: usize, place: Position) -> Result<(), YamlError> {
        let Some(named) = self.anchors.get(&anchor) else {
            let message = "an alias can't refer to a value that contains it: write the value out";
            self.errors.push((place, message.to_owned()));
            return self.add(YamlNode { place, value: YamlValue::Broken }, 0);
        };
        if self.open.len() + named.height() > MAX_LEVELS {
            return Err((place, too_deep()));
        }
        let size = named.size();
        self.count_values(size, place)?;
        let copy = self.anchors[&anchor].clone();
        self.add(copy, 0)
    }

    fn add(&mut self, node: YamlNode<'t>, anchor: usize) -> Result<(), YamlError> {
        self.count_values(1, node.place)?;
        if anchor != 0 {
            self.count_values(node.size(), node.place)?;
            self.anchors.insert(anchor, node.clone());
        }
        match self.open.last_mut() {
            Some(open) => open.items.push(node),
            None => self.roots.push(node),
        }
        Ok(())
    }

    fn count_values(&mut self, values: usize, place: Position) -> Result<(), YamlError> {
        self.values += values;
        if self.values <= MAX_VALUES {
            Ok(())
        } else {
            let message = format!(
                "the file expands to more than {MAX_VALUES} values, including those repeated by aliases: split it, or \
                 nest fewer aliases"
            );
            Err((place, message))
        }
    }

    /// Replaces `<<` by the fields of the maps that it refers to. Fields of the map itself take precedence.
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
                        let message = "<< merges the fields of another map: write <<: *name, with name: &name {…} \
                                       above";
                        self.errors.push((source.place, message.to_owned()));
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
    format!("values are nested more than {MAX_LEVELS} levels deep: six are enough")
}

/// Explains a syntax error, and what to write instead.
fn explain_scan_error(error: &ScanError) -> YamlError {
    let message = match error.kind() {
        ErrorKind::MappingValueNotAllowed | ErrorKind::InvalidColonPlacement => {
            "a field can't begin here: indent it like the fields beside it, and quote text that contains a colon \
             and a space"
        }
        ErrorKind::ExpectedBlockMappingKey
        | ErrorKind::InvalidIndentation
        | ErrorKind::ExpectedBlockSequenceEntry
        | ErrorKind::BlockSequenceEntryNotAllowed => {
            "the indentation does not match the lines above: indent a field like those beside it, and align the - of \
             each list entry"
        }
        ErrorKind::TabNotAllowed
        | ErrorKind::TabInBlockIndentation
        | ErrorKind::TabInIndentation
        | ErrorKind::TabInPlainScalar
        | ErrorKind::TabAtBlockScalarStart => "YAML can't be indented with tabs: use spaces",
        ErrorKind::SimpleKeyExpected | ErrorKind::InvalidSimpleKey => {
            "this is not a field: write a name, a colon and a space before the value, like limit: 100/min"
        }
        ErrorKind::UnclosedQuotedScalar => "a quote is opened here and never closed: close it",
        ErrorKind::InvalidQuotedScalarIndent => {
            "a quote that was opened above is still open here: close it where the text ends"
        }
        ErrorKind::InvalidTrailingSingleQuotedScalar | ErrorKind::InvalidTrailingDoubleQuotedScalar => {
            "there is more text after the closing quote: put the whole value between the quotes"
        }
        ErrorKind::UnknownQuotedScalarEscape => {
            "unknown escape in double quotes: write \\\\ for a backslash, or use single quotes"
        }
        ErrorKind::ExpectedFlowMappingSeparator | ErrorKind::UnexpectedEofFlowMapping => {
            "the braces are malformed: write {name: value, name: value}, with a comma between fields and } at the end"
        }
        ErrorKind::ExpectedFlowSequenceSeparator | ErrorKind::UnexpectedEofFlowSequence => {
            "the brackets are malformed: write [one, another], with a comma between entries and ] at the end"
        }
        ErrorKind::UnclosedFlowCollection { open } => {
            let close = if *open == '[' { ']' } else { '}' };
            return (place(*error.marker()), format!("{open} is opened here and never closed: add {close}"));
        }
        ErrorKind::MissingAnchorOrAliasName => {
            "* and & have a special meaning at the start of a value: put the value in quotes, like \"*\""
        }
        ErrorKind::UnexpectedCharacter { character } => {
            let message = format!("a value can't begin with {character:?}: put it in quotes");
            return (place(*error.marker()), message);
        }
        ErrorKind::RecursionLimitExceeded => return (place(*error.marker()), too_deep()),
        kind => {
            let message = format!("invalid YAML: {kind}");
            return (place(*error.marker()), message);
        }
    };
    (place(*error.marker()), message.to_owned())
}
