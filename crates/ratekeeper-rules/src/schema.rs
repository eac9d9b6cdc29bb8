//! The JSON Schema of rule files, for editors.
//!
//! It is generated from the same field tables as the parser uses, so both accept the same fields. Checks beyond the
//! shape of a file (that a pattern compiles, that a rule is reachable) are left to `ratekeeper rules check`.

pub(crate) mod field;
pub(crate) mod table;

use crate::bounds::MAX_DESCRIPTOR_ENTRIES;
use field::{Field, FieldForm, FieldTable};
use serde_json::{Map, Value, json};
use table::{CONTENT_FIELDS, FILE, TABLES};

/// The JSON Schema (draft 2020-12) of rule files. Editors use it to complete fields, show their descriptions, and mark
/// errors.
///
/// ```
/// let schema = ratekeeper_rules::schema();
/// assert_eq!(schema["properties"]["rules"]["items"]["$ref"], "#/$defs/rule");
/// ```
pub fn schema() -> Value {
    let mut schema = object_schema(&FILE);
    let tables = TABLES.iter().skip(1).map(|table| (def_name(table).to_owned(), object_schema(table)));
    let defs: Map<_, _> = tables.chain([("quota".to_owned(), quota_schema())]).collect();
    let any_of: Vec<_> = CONTENT_FIELDS
        .iter()
        .filter_map(|name| FILE.position(name))
        .flat_map(|index| FILE.fields[index].names())
        .map(|name| json!({"required": [name]}))
        .collect();
    if let Value::Object(fields) = &mut schema {
        fields.insert("$schema".to_owned(), json!("https://json-schema.org/draft/2020-12/schema"));
        fields.insert("title".to_owned(), json!("Ratekeeper rules"));
        fields.insert("anyOf".to_owned(), any_of.into());
        // Anchors may be defined under names that begin with `x-`.
        fields.insert("patternProperties".to_owned(), json!({"^x-": {}}));
        fields.insert("$defs".to_owned(), defs.into());
    }
    schema
}

/// The name of a table in `$defs`: its title without the article.
fn def_name(table: &FieldTable) -> &'static str {
    table.title.rsplit(' ').next().unwrap_or(table.title)
}

fn object_schema(table: &FieldTable) -> Value {
    let mut properties = Map::new();
    for field in table.fields {
        for name in field.names() {
            properties.insert(name.to_owned(), property_schema(field, name));
        }
    }
    let mut object = json!({
        "type": "object",
        "title": def_name(table),
        "description": format!("{}\n\nExample: {}", table.description, table.example),
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

fn property_schema(field: &Field, name: &str) -> Value {
    let mut property = value_schema(&field.form);
    let also = if name == field.name { String::new() } else { format!("Another name for {}. ", field.name) };
    property["title"] = json!(name);
    property["description"] =
        json!(format!("{also}{}\n\nExample: {name}: {}", field.description, field.example));
    property
}

/// Names that can't be combined: two names of one field, or two fields of an exclusive group.
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

fn value_schema(form: &FieldForm) -> Value {
    match form {
        // Text without quotes may look like a number; it is used as written.
        FieldForm::Text => {
            json!({"type": ["string", "number", "boolean"], "minLength": 1, "maxLength": 4096})
        }
        FieldForm::Boolean => json!({"type": "boolean"}),
        FieldForm::Integer(least, most) => {
            let number = json!({"type": "integer", "minimum": least, "maximum": most});
            number_or_text(&number, "^[0-9][0-9_]*$")
        }
        FieldForm::Decimal => number_or_text(
            &json!({"type": "number", "exclusiveMinimum": 0}),
            "^[0-9][0-9_]*(\\.[0-9][0-9_]*)?$",
        ),
        FieldForm::Span => {
            let pattern = format!("^[0-9][0-9_]*(\\.[0-9][0-9_]*)?$|^{PERIOD}$");
            number_or_text(&json!({"type": "number", "exclusiveMinimum": 0}), &pattern)
        }
        FieldForm::Timeout => {
            json!({"type": "string", "pattern": "^\\s*[0-9][0-9_]*(\\.[0-9][0-9_]*)?\\s*(ms|s)\\s*$"})
        }
        FieldForm::Timestamp => {
            let pattern = "^[0-9]+$|^[0-9]{4}-[0-9]{2}-[0-9]{2}([Tt ][0-9:.,]+ ?([Zz]|[+-][0-9:]+))?$";
            number_or_text(&json!({"type": "integer", "minimum": 0}), pattern)
        }
        FieldForm::Quota => json!({"$ref": "#/$defs/quota"}),
        FieldForm::Limit => json!({"anyOf": [value_schema(&FieldForm::Quota), {"const": "unlimited"}]}),
        FieldForm::Network => json!({"type": "string", "pattern": "^[0-9A-Fa-f:.]+(/[0-9]{1,3})?$"}),
        FieldForm::Descriptor => descriptor_schema(),
        FieldForm::Choice(words) => json!({"enum": words}),
        FieldForm::List(form) => json!({"type": "array", "items": value_schema(form)}),
        FieldForm::OneOrList(form) => {
            json!({"anyOf": [value_schema(form), {"type": "array", "items": value_schema(form), "minItems": 1}]})
        }
        FieldForm::Map(form) => json!({"type": "object", "additionalProperties": value_schema(form)}),
        FieldForm::NamedMap(form) => json!({
            "type": "object",
            "propertyNames": {"pattern": "^[A-Za-z0-9._:/-]{1,64}$"},
            "additionalProperties": value_schema(form),
        }),
        FieldForm::Fields(table) => json!({"$ref": format!("#/$defs/{}", def_name(table))}),
        FieldForm::Either(first, second) => json!({"anyOf": [value_schema(first), value_schema(second)]}),
    }
}

/// A name alone, a list of names and name-value pairs, or a map of names to values.
fn descriptor_schema() -> Value {
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
        "maxItems": MAX_DESCRIPTOR_ENTRIES,
    });
    pair["maxProperties"] = json!(MAX_DESCRIPTOR_ENTRIES);
    json!({"anyOf": [name, list, pair]})
}

/// A number, or text, since digits with `_` between them are text in YAML.
fn number_or_text(number: &Value, pattern: &str) -> Value {
    json!({"anyOf": [number, {"type": "string", "pattern": pattern}]})
}

/// A quota as text.
fn quota_schema() -> Value {
    /// A whole number above zero.
    const DIGITS: &str = "[0-9_]*[1-9][0-9_]*";
    json!({
        "type": "string",
        "title": "quota",
        "description": "An amount, a period, and optionally a burst.\n\n\
                        Examples: 100/s, 5000/h burst 200, 3 per 90s, 1000/day",
        "pattern": format!("^\\s*{DIGITS}\\s*(/|\\sper\\s){PERIOD}(burst\\s*{DIGITS}\\s*)?$"),
    })
}

/// The syntax of periods in quotas.
const PERIOD: &str = "\\s*[0-9]*\\s*(us|µs|microseconds?|ms|milliseconds?|s|secs?|seconds?|m|mins?|minutes?|\
                      h|hr|hours?|d|days?|w|weeks?|mo|months?|y|years?)\\s*";
