//! The arguments of a command, as spans of the bytes that they were decoded from.

/// The start and end of an argument.
pub(super) type ArgumentSpan = (u32, u32);

/// Converts an offset in a command.
pub(super) fn position(at: usize) -> u32 {
    u32::try_from(at).expect("commands are smaller than 4 GiB")
}

/// The arguments of a command. The first is its name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arguments<'a> {
    bytes: &'a [u8],
    spans: &'a [ArgumentSpan],
}

impl<'a> Arguments<'a> {
    #[inline]
    pub(super) fn new(bytes: &'a [u8], spans: &'a [ArgumentSpan]) -> Arguments<'a> {
        Arguments { bytes, spans }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.spans.len()
    }

    #[inline]
    pub(super) fn get(&self, index: usize) -> Option<&'a [u8]> {
        self.spans.get(index).map(|(begin, end)| &self.bytes[*begin as usize..*end as usize])
    }

    /// The spans of the first `N` arguments. Returns `None` if there are fewer.
    pub(super) fn spans<const N: usize>(&self) -> Option<[(usize, usize); N]> {
        let spans = self.spans.first_chunk::<N>()?;
        Some(spans.map(|(begin, end)| (begin as usize, end as usize)))
    }

    /// The command's name.
    #[inline]
    pub(super) fn name(&self) -> &'a [u8] {
        self.get(0).unwrap_or_default()
    }

    /// The arguments from index `first` on.
    pub(super) fn starting_at(self, first: usize) -> impl Iterator<Item = &'a [u8]> + Clone + use<'a> {
        (first..self.len()).filter_map(move |index| self.get(index))
    }
}
