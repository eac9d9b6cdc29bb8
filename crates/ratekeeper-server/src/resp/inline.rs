//! Inline commands, as people type them.
//!
//! Words are separated by whitespace. A word in double quotes may contain whitespace and escapes (`\n`, `\r`, `\t`,
//! `\b`,
//! `\a`, `\xHH`; any other escaped character stands for itself). In single quotes, only the quote itself can be
//! escaped. A closing quote must be followed by whitespace or the end of the line.

use super::arguments::{ArgumentSpan, position};

/// A quote is not closed, or directly followed by another character.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UnbalancedQuotes;

/// Splits a line into words, which are appended to `text` unquoted. Stops after one word more than `max_words`.
pub(super) fn split(
    line: &[u8],
    max_words: usize,
    text: &mut Vec<u8>,
    words: &mut Vec<ArgumentSpan>,
) -> Result<(), UnbalancedQuotes> {
    text.clear();
    let mut rest = line;
    loop {
        rest = rest.trim_ascii_start();
        if rest.is_empty() || words.len() > max_words {
            return Ok(());
        }
        let begin = position(text.len());
        rest = unquote_word(rest, text)?;
        words.push((begin, position(text.len())));
    }
}

/// Appends the first word of the line to `text`, and returns the rest of the line.
fn unquote_word<'a>(mut line: &'a [u8], text: &mut Vec<u8>) -> Result<&'a [u8], UnbalancedQuotes> {
    loop {
        line = match line {
            [] => return Ok(line),
            [blank, ..] if is_blank(*blank) => return Ok(line),
            [b'"', rest @ ..] => return after_quote(double_quoted(rest, text)?),
            [b'\'', rest @ ..] => return after_quote(single_quoted(rest, text)?),
            [byte, rest @ ..] => {
                text.push(*byte);
                rest
            }
        };
    }
}

/// Returns `rest` if a closing quote may be followed by it.
fn after_quote(rest: &[u8]) -> Result<&[u8], UnbalancedQuotes> {
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
                text.push(hex_digit(*high) << 4 | hex_digit(*low));
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

/// Whether `trim_ascii` removes the byte.
fn is_blank(byte: u8) -> bool {
    byte.is_ascii_whitespace()
}

/// The value of a hexadecimal digit.
fn hex_digit(byte: u8) -> u8 {
    match byte {
        b'0'..=b'9' => byte - b'0',
        _ => (byte | 0x20) - b'a' + 10,
    }
}
