//! Commands on a line, as people type them.
//!
//! Words are separated by blanks. A word in double quotes may have blanks in it and escapes (`\n`, `\r`, `\t`, `\b`, `\a`,
//! `\xHH`, any other character for itself); in single quotes, only the quote itself is escaped. A quote that ends must be
//! followed by a blank or by nothing.

use super::decode::{ArgumentSpan, position};

/// A quote was not closed, or something stands right behind one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UnbalancedQuotes;

/// Cuts a line into words, which are written to `text` with their quotes and escapes undone. It stops when it has one more
/// than `most`.
pub(super) fn split(
    line: &[u8],
    most: usize,
    text: &mut Vec<u8>,
    words: &mut Vec<ArgumentSpan>,
) -> Result<(), UnbalancedQuotes> {
    text.clear();
    let mut rest = line;
    loop {
        rest = rest.trim_ascii_start();
        if rest.is_empty() || words.len() > most {
            return Ok(());
        }
        let begin = position(text.len());
        rest = word(rest, text)?;
        words.push((begin, position(text.len())));
    }
}

/// Writes the word that the line begins with, and gives what is behind it.
fn word<'a>(mut line: &'a [u8], text: &mut Vec<u8>) -> Result<&'a [u8], UnbalancedQuotes> {
    loop {
        line = match line {
            [] => return Ok(line),
            [blank, ..] if is_blank(*blank) => return Ok(line),
            [b'"', rest @ ..] => return ended(double_quoted(rest, text)?),
            [b'\'', rest @ ..] => return ended(single_quoted(rest, text)?),
            [byte, rest @ ..] => {
                text.push(*byte);
                rest
            }
        };
    }
}

/// Behind a closed quote there is a blank or nothing.
fn ended(rest: &[u8]) -> Result<&[u8], UnbalancedQuotes> {
    match rest.first() {
        Some(byte) if !is_blank(*byte) => Err(UnbalancedQuotes),
        _ => Ok(rest),
    }
}

fn double_quoted<'a>(mut line: &'a [u8], text: &mut Vec<u8>) -> Result<&'a [u8], UnbalancedQuotes> {
    loop {
        line = match line {
            [] => return Err(UnbalancedQuotes),
            [b'"', rest @ ..] => return Ok(rest),
            [b'\\', b'x', high, low, rest @ ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                text.push(digit(*high) << 4 | digit(*low));
                rest
            }
            [b'\\', escaped, rest @ ..] => {
                text.push(match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 8,
                    b'a' => 7,
                    other => *other,
                });
                rest
            }
            [byte, rest @ ..] => {
                text.push(*byte);
                rest
            }
        };
    }
}

fn single_quoted<'a>(mut line: &'a [u8], text: &mut Vec<u8>) -> Result<&'a [u8], UnbalancedQuotes> {
    loop {
        line = match line {
            [] => return Err(UnbalancedQuotes),
            [b'\'', rest @ ..] => return Ok(rest),
            [b'\\', b'\'', rest @ ..] => {
                text.push(b'\'');
                rest
            }
            [byte, rest @ ..] => {
                text.push(*byte);
                rest
            }
        };
    }
}

/// What `trim_ascii` takes away.
fn is_blank(byte: u8) -> bool {
    byte.is_ascii_whitespace()
}

/// The value of a hexadecimal digit.
fn digit(byte: u8) -> u8 {
    match byte {
        b'0'..=b'9' => byte - b'0',
        _ => (byte | 0x20) - b'a' + 10,
    }
}
