//! What a table of fields consists of.

/// A map with a fixed set of fields.
#[derive(Debug)]
pub(crate) struct FieldTable {
    /// What the map describes, with its article: `a rule`.
    pub(crate) title: &'static str,
    /// The description, which editors show.
    pub(crate) description: &'static str,
    /// An example in YAML.
    pub(crate) example: &'static str,
    pub(crate) fields: &'static [Field],
    /// Groups of fields of which at most one may be present.
    pub(crate) exclusive: &'static [&'static [&'static str]],
    /// Hints for unknown fields that people are likely to write.
    pub(crate) hints: &'static [(&'static str, &'static str)],
}

/// A field of a [`FieldTable`].
#[derive(Debug)]
pub(crate) struct Field {
    pub(crate) name: &'static str,
    /// Other names for the same field.
    pub(crate) aliases: &'static [&'static str],
    /// Whether the field is mandatory.
    pub(crate) is_required: bool,
    /// Whether several of its names may be used together; their values are then combined.
    pub(crate) is_joined: bool,
    pub(crate) form: FieldForm,
    /// An example value in YAML.
    pub(crate) example: &'static str,
    /// The description, which editors show.
    pub(crate) description: &'static str,
}

/// The type of a field's value.
#[derive(Debug)]
pub(crate) enum FieldForm {
    /// A single value, used as text.
    Text,
    /// `true` or `false`.
    Boolean,
    /// A whole number from the first to the second.
    Integer(u64, u64),
    /// A positive decimal number, read exactly.
    Decimal,
    /// A number of seconds, or text like `1h`.
    Span,
    /// A timeout like `20ms`.
    Timeout,
    /// A date or a time.
    Timestamp,
    /// Text like `100/min burst 20`.
    Quota,
    /// A quota, or `unlimited`.
    Limit,
    /// An address or a network.
    Network,
    /// The entries of a proxy's descriptor.
    Descriptor,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A list.
    List(&'static FieldForm),
    /// A single value, or a list of at least one.
    OneOrList(&'static FieldForm),
    /// A map whose names the author chooses.
    Map(&'static FieldForm),
    /// Like `Map`, but with the same restrictions on names as rule ids.
    NamedMap(&'static FieldForm),
    /// A map with a fixed set of fields.
    Fields(&'static FieldTable),
    /// One of two types.
    Either(&'static FieldForm, &'static FieldForm),
}

impl FieldTable {
    /// The index of the field with this name or alias. Returns `None` if there is none.
    pub(crate) fn position(&self, name: &str) -> Option<usize> {
        self.fields.iter().position(|field| field.names().any(|known| known == name))
    }

    /// The names and aliases of all fields.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> + use<> {
        self.fields.iter().flat_map(Field::names)
    }
}

impl Field {
    /// The name, then the aliases.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> + use<> {
        std::iter::once(self.name).chain(self.aliases.iter().copied())
    }

    pub(super) const fn aliases(mut self, names: &'static [&'static str]) -> Field {
        self.aliases = names;
        self
    }

    pub(super) const fn required(mut self) -> Field {
        self.is_required = true;
        self
    }

    pub(super) const fn joined(mut self) -> Field {
        self.is_joined = true;
        self
    }
}

/// A field that is optional, has no aliases and stands alone.
pub(super) const fn field(
    name: &'static str,
    form: FieldForm,
    example: &'static str,
    about: &'static str,
) -> Field {
    Field { name, aliases: &[], is_required: false, is_joined: false, form, example, description: about }
}
