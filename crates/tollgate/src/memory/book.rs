//! The limits that wrote the table's states, by page number.
//!
//! An entry has no room for its limit, but whoever sweeps it, or finds it after the limit was changed, needs to know
//! it. So limits are written into a book that only grows, and an entry remembers the page. Reading a page takes no
//! lock. The book is bounded; what no longer fits is not remembered, and counted.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::OnceLock;
use tollgate_core::Limit;

const CHAPTERS: usize = 1 << 10;
const PAGES: usize = 1 << 10;
/// Pages that are at hand without opening a chapter. Most programs have a handful of limits.
const FRONT: usize = 8;

type Chapter = Box<[OnceLock<Limit>]>;

/// A book of up to a million limits.
#[derive(Debug)]
pub(crate) struct Book {
    front: [OnceLock<Limit>; FRONT],
    chapters: Box<[OnceLock<Chapter>]>,
    index: Mutex<HashMap<Limit, u32>>,
}

impl Book {
    pub(crate) fn new() -> Book {
        Book {
            front: [const { OnceLock::new() }; FRONT],
            chapters: (0..CHAPTERS).map(|_| OnceLock::new()).collect(),
            index: Mutex::default(),
        }
    }

    /// The limit on a page.
    #[inline]
    pub(crate) fn limit(&self, page: u32) -> Option<&Limit> {
        let page = page as usize;
        match self.front.get(page) {
            Some(limit) => limit.get(),
            None => self.chapters.get(page / PAGES)?.get()?[page % PAGES].get(),
        }
    }

    /// The page that a limit is on, which it is given if it has none; nothing if the book is full.
    pub(crate) fn page(&self, limit: &Limit) -> Option<u32> {
        match self.front.iter().position(|other| other.get() == Some(limit)) {
            Some(page) => u32::try_from(page).ok(),
            None => self.look_up(limit),
        }
    }

    #[cold]
    fn look_up(&self, limit: &Limit) -> Option<u32> {
        let mut index = self.index.lock();
        if let Some(page) = index.get(limit) {
            return Some(*page);
        }
        let page = index.len();
        let place = match self.front.get(page) {
            Some(place) => place,
            None => {
                let chapter = self.chapters.get(page / PAGES)?;
                &chapter.get_or_init(|| (0..PAGES).map(|_| OnceLock::new()).collect())[page % PAGES]
            }
        };
        place.get_or_init(|| *limit);
        let page = u32::try_from(page).ok()?;
        index.insert(*limit, page);
        Some(page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_core::{Law, Quota, Span};

    #[test]
    fn every_limit_has_one_page_until_the_book_is_full() {
        let limit = |amount: usize| {
            let quota = Quota::new(u32::try_from(amount).unwrap(), Span::SECOND).unwrap();
            Limit::new(Law::TokenBucket, quota).unwrap()
        };
        let book = Book::new();
        let pages = CHAPTERS * PAGES;
        for amount in 1..=pages {
            assert_eq!(book.page(&limit(amount)), u32::try_from(amount - 1).ok());
        }
        assert_eq!(book.page(&limit(7)), Some(6));
        assert_eq!(book.limit(6), Some(&limit(7)));
        assert_eq!(book.page(&limit(pages + 1)), None);
        assert_eq!(book.limit(u32::MAX), None);
    }
}
