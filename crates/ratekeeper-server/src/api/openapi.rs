//! The OpenAPI description of the API.
//!
//! It is written by hand and served unchanged. Tests generate requests from it and check the responses against it.

/// The document, in OpenAPI 3.1.
pub(super) const DOCUMENT: &str = include_str!("openapi.json");

#[cfg(test)]
mod tests {
    use super::*;
    use ratekeeper::rules::{MAX_ATTRIBUTES, RequestField};
    use serde_json::Value;

    #[test]
    fn the_documented_bounds_are_those_of_requests() {
        let document: Value = serde_json::from_str(DOCUMENT).unwrap();
        let max = |field: RequestField| Some(field.bound().max as u64);
        let schemas = document["components"]["schemas"].as_object().unwrap().values();
        let checks: Vec<_> =
            schemas.filter(|schema| schema["properties"]["client_key"].is_object()).collect();
        assert!(!checks.is_empty());
        for schema in checks {
            let fields = &schema["properties"];
            for (name, field) in [
                ("client_key", RequestField::ClientKey),
                ("endpoint", RequestField::Endpoint),
                ("method", RequestField::Method),
                ("tier", RequestField::Tier),
            ] {
                assert_eq!(fields[name]["maxLength"].as_u64(), max(field), "{name}");
            }
            let attributes = &fields["attributes"];
            assert_eq!(attributes["maxProperties"].as_u64(), Some(MAX_ATTRIBUTES as u64));
            let name = &attributes["propertyNames"]["maxLength"];
            assert_eq!(name.as_u64(), max(RequestField::AttributeName));
            let value = &attributes["additionalProperties"]["maxLength"];
            assert_eq!(value.as_u64(), max(RequestField::AttributeValue));
            assert_eq!(fields["cost"]["maximum"].as_u64(), Some(u32::MAX.into()));
        }
    }
}
