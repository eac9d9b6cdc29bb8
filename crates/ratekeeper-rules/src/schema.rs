//! The JSON Schema of rule files, for editors.
//!
//! It is made of the tables that the reader reads by. What only the reader can tell (that a pattern reads, that a rule
//! is reached) it leaves to `ratekeeper rules check`; all that is not in the tables it refuses.

pub(crate) mod table;

use crate::read::MOST_ENTRIES;
use serde_json::{Map, Value, json};
use table::{FILE, Field, FieldForm, FieldTable, TABLES};

/// The JSON Schema (draft 2020-12) of rule files. An editor that knows it completes fields, shows what they are for,
/// and marks what is out of place.
///
/// ```
/// let schema = ratekeeper_rules::schema();
/// assert_eq!(schema["properties"]["rules"]["items"]["$ref"], "#/$defs/rule");
/// ```
pub fn schema() -> Value {
    let mut schema = object(&FILE);
    let tables = TABLES.iter().skip(1).map(|table| (name(table).to_owned(), object(table)));
    let defs: Map<_, _> = tables.chain([("quota".to_owned(), quota())]).collect();
    let any_of: Vec<_> = crate::read::SUBSTANCE
        .iter()
        .filter_map(|name| FILE.position(name))
        .flat_map(|index| FILE.fields[index].names())
        .map(|name| json!({"required": [name]}))
        .collect();
    if let Value::Object(fields) = &mut schema {
        fields.insert("$schema".to_owned(), json!("https://json-schema.org/draft/2020-12/schema"));
        fields.insert("title".to_owned(), json!("Ratekeeper rules"));
        fields.insert("anyOf".to_owned(), any_of.into());
        // What aliases name may be kept apart, under names of the author's choice.
        fields.insert("patternProperties".to_owned(), json!({"^x-": {}}));
        fields.insert("$defs".to_owned(), defs.into());
    }
    schema
}

/// A table's name among the definitions: its title without the article.
fn name(table: &FieldTable) -> &'static str {
    table.title.rsplit(' ').next().unwrap_or(table.title)
}

fn object(table: &FieldTable) -> Value {
    let mut properties = Map::new();
    for field in table.fields {
        for name in field.names() {
            properties.insert(name.to_owned(), property(field, name));
        }
    }
    let mut object = json!({
        "type": "object",
        "title": name(table),
        "description": format!("{}\n\nExample: {}", table.about, table.example),
        "properties": properties,
        "additionalProperties": false,
    });
    let required: Vec<_> =
        table.fields.iter().filter(|field| field.is_required).map(|field| field.name).collect();
    if !required.is_empty() {
        object["required"] = json!(required);
    }
    let pairs = exclusive_pairs(table);
    if !pairs.is_empty() {
        let never = |(first, second): &(&str, &str)| json!({"not": {"required": [first, second]}});
        object["allOf"] = pairs.iter().map(never).collect();
    }
    object
}

fn property(field: &Field, name: &str) -> Value {
    let mut property = value(&field.form);
    let also = if name == field.name { String::new() } else { format!("Another name of {}. ", field.name) };
    property["title"] = json!(name);
    property["description"] = json!(format!("{also}{}\n\nExample: {name}: {}", field.about, field.example));
    property
}

/// Names that can't be there together: two names of one field, or two fields of a group.
fn exclusive_pairs(table: &FieldTable) -> Vec<(&'static str, &'static str)> {
    let alone =
        table.fields.iter().filter(|field| !field.is_joined).map(|field| field.names().collect::<Vec<_>>());
    let groups = table.exclusive.iter().map(|group| {
        let fields = group.iter().filter_map(|name| table.position(name));
        fields.flat_map(|index| table.fields[index].names()).collect()
    });
    let mut pairs = Vec::new();
    for names in alone.chain(groups) {
        for (index, first) in names.iter().enumerate() {
            pairs.extend(names[index + 1..].iter().map(|second| (*first, *second)));
        }
    }
    pairs.sort_unstable();
    pairs.dedup();
    pairs
}

fn value(form: &FieldForm) -> Value {
    match form {
        // What is written without quotes may look like a number, and is taken as it is written.
        FieldForm::Text => {
            json!({"type": ["string", "number", "boolean"], "minLength": 1, "maxLength": 4096})
        }
        FieldForm::Flag => json!({"type": "boolean"}),
        FieldForm::Whole(least, most) => {
            let number = json!({"type": "integer", "minimum": least, "maximum": most});
            either(&number, "^[0-9][0-9_]*$")
        }
        FieldForm::Decimal => {
            either(&json!({"type": "number", "exclusiveMinimum": 0}), "^[0-9][0-9_]*(\\.[0-9][0-9_]*)?$")
        }
        FieldForm::Span => {
            let pattern = format!("^[0-9][0-9_]*(\\.[0-9][0-9_]*)?$|^{PERIOD}$");
            either(&json!({"type": "number", "exclusiveMinimum": 0}), &pattern)
        }
        FieldForm::Timeout => {
            json!({"type": "string", "pattern": "^\\s*[0-9][0-9_]*(\\.[0-9][0-9_]*)?\\s*(ms|s)\\s*$"})
        }
        FieldForm::Moment => {
            let pattern = "^[0-9]+$|^[0-9]{4}-[0-9]{2}-[0-9]{2}([Tt ][0-9:.,]+ ?([Zz]|[+-][0-9:]+))?$";
            either(&json!({"type": "integer", "minimum": 0}), pattern)
        }
        FieldForm::Quota => json!({"$ref": "#/$defs/quota"}),
        FieldForm::Limit => json!({"anyOf": [value(&FieldForm::Quota), {"const": "unlimited"}]}),
        FieldForm::Network => json!({"type": "string", "pattern": "^[0-9A-Fa-f:.]+(/[0-9]{1,3})?$"}),
        FieldForm::Descriptor => descriptor(),
        FieldForm::Choice(words) => json!({"enum": words}),
        FieldForm::List(form) => json!({"type": "array", "items": value(form)}),
        FieldForm::OneOrList(form) => {
            json!({"anyOf": [value(form), {"type": "array", "items": value(form), "minItems": 1}]})
        }
        FieldForm::Map(form) => json!({"type": "object", "additionalProperties": value(form)}),
        FieldForm::Named(form) => json!({
            "type": "object",
            "propertyNames": {"pattern": "^[A-Za-z0-9._:/-]{1,64}$"},
            "additionalProperties": value(form),
        }),
        FieldForm::Fields(table) => json!({"$ref": format!("#/$defs/{}", name(table))}),
        FieldForm::Either(first, second) => json!({"anyOf": [value(first), value(second)]}),
    }
}

/// A name alone, a list of names and of names with values, or a map of names and values.
fn descriptor() -> Value {
    // A value, unlike a name, may be empty.
    let values = json!({"type": ["string", "number", "boolean"], "maxLength": 4096});
    let name = json!({"type": ["string", "number", "boolean"], "pattern": "^[^*]+$", "maxLength": 4096});
    let mut pair = json!({
        "type": "object",
        "propertyNames": name,
        "additionalProperties": values,
        "minProperties": 1,
        "maxProperties": 1,
    });
    let list = json!({
        "type": "array",
        "items": {"anyOf": [name, pair]},
        "minItems": 1,
        "maxItems": MOST_ENTRIES,
    });
    pair["maxProperties"] = json!(MOST_ENTRIES);
    json!({"anyOf": [name, list, pair]})
}

/// A number, or text: one with `_` between its digits is no number to YAML.
fn either(number: &Value, pattern: &str) -> Value {
    json!({"anyOf": [number, {"type": "string", "pattern": pattern}]})
}

/// A quota as text.
fn quota() -> Value {
    /// A whole number above zero.
    const DIGITS: &str = "[0-9_]*[1-9][0-9_]*";
    json!({
        "type": "string",
        "title": "quota",
        "description": "An amount, a period, and perhaps how much may come at once.\n\n\
                        Examples: 100/s, 5000/h burst 200, 3 per 90s, 1000/day",
        "pattern": format!("^\\s*{DIGITS}\\s*(/|\\sper\\s){PERIOD}(burst\\s*{DIGITS}\\s*)?$"),
    })
}

/// A period as quotas have it.
const PERIOD: &str = "\\s*[0-9]*\\s*(us|µs|microseconds?|ms|milliseconds?|s|secs?|seconds?|m|mins?|minutes?|\
                      h|hr|hours?|d|days?|w|weeks?|mo|months?|y|years?)\\s*";
