//! Why a text is not a valid path pattern.

/// Why a text is not a valid path pattern, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PathPatternError {
    /// A name in braces is invalid.
    #[error(
        "a name in braces has letters, digits, _, - and . only: write it like /users/{{id}}, or {{*rest}} at the end"
    )]
    InvalidName,
    /// Braces cover only a part of a segment.
    #[error(
        "a name in braces stands for a whole segment: write /files/{{name}}, or use path_regex for a part of one"
    )]
    PartialSegment,
    /// `{*rest}` is not at the end.
    #[error(
        "{{*name}} stands for all that follows, so it must be the last segment: write {{name}} for one segment"
    )]
    RestNotLast,
    /// The text has both braces and stars.
    #[error(
        "a path has names in braces or stars, not both: write /users/{{id}}/files/{{file}}, or /users/*/files/*"
    )]
    TemplateAndGlob,
    /// The text has empty or dot segments.
    #[error("paths are compared without . and .. and empty segments: leave them out")]
    DotSegments,
    /// The regular expression is invalid.
    #[error("cannot read the regular expression: {message}")]
    InvalidRegex {
        /// The message of the regex parser.
        message: String,
    },
    /// The compiled expression takes too much memory.
    #[error(
        "the regular expression takes over 1 MB when it is compiled: use smaller counts in {{}}, or several rules"
    )]
    RegexTooLarge,
}
