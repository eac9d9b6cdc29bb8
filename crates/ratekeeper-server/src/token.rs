//! Bearer tokens of the admin API and the check API.
//!
//! Only a token's SHA-256 is kept. A token has too many bits to be found by brute force, so a slow hash would add
//! nothing. Digests are compared in constant time, so the response time does not show how much of a guess was right.
//! The text of a token exists only where it is read, and once where it is generated.

use crate::file;
use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::{digest, rand};
use std::fmt::{self, Write as _};
use std::io;
use std::path::{Path, PathBuf};

/// The minimum length of a token. Random letters and digits of this length have some 95 bits.
const FEWEST_CHARS: usize = 16;
/// The maximum length of a token, which still fits into a header.
const MOST_CHARS: usize = 1024;
/// The maximum size of a token file, which may have whitespace around the token.
const MAX_FILE_BYTES: u64 = 4096;
/// The number of random bytes in a generated token.
const RANDOM_BYTES: usize = 32;
/// The prefix of generated tokens, so that secret scanners recognise a leaked one.
const PREFIX: &str = "rk_";

/// A secret that callers have to send, kept as a digest.
///
/// ```
/// use ratekeeper_server::Token;
///
/// let (token, text) = Token::generate()?;
/// assert!(token.admits(Some(format!("Bearer {text}").as_bytes())));
/// assert!(!token.admits(None));
/// # Ok::<(), ratekeeper_server::TokenError>(())
/// ```
#[derive(Clone)]
pub struct Token {
    digest: [u8; digest::SHA256_OUTPUT_LEN],
}

impl Token {
    /// Generates a token of 256 random bits and returns it with its text, which can't be recovered later.
    ///
    /// # Errors
    /// If the system's random number generator fails.
    pub fn generate() -> Result<(Token, String), TokenError> {
        let mut bytes = [0; RANDOM_BYTES];
        rand::fill(&mut bytes).map_err(|_| TokenError::NoRandomness)?;
        let mut text = PREFIX.to_owned();
        for byte in bytes {
            let _ = write!(text, "{byte:02x}");
        }
        Ok((Token::of(text.as_bytes()), text))
    }

    /// Reads a token from a file that contains nothing else. Surrounding whitespace is ignored.
    ///
    /// # Errors
    /// If the file can't be read or does not contain a valid token.
    pub fn read(path: &Path) -> Result<Token, TokenError> {
        let unreadable = |source| TokenError::Unreadable { path: path.into(), source };
        let bytes = file::read(path, MAX_FILE_BYTES).map_err(unreadable)?;
        let text = str::from_utf8(&bytes).map_err(|_| TokenError::InvalidCharacter)?;
        Token::parse(text)
    }

    /// Parses a token. Surrounding whitespace is ignored.
    ///
    /// # Errors
    /// If it is too short, too long, or has characters that a header can't carry.
    pub fn parse(text: &str) -> Result<Token, TokenError> {
        let text = text.trim();
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(TokenError::InvalidCharacter);
        }
        match text.len() {
            ..FEWEST_CHARS => Err(TokenError::TooShort { chars: text.len() }),
            FEWEST_CHARS..=MOST_CHARS => Ok(Token::of(text.as_bytes())),
            _ => Err(TokenError::TooLong),
        }
    }

    /// Whether `text` is the token. The time this takes depends only on the length of `text`.
    pub fn matches(&self, text: &[u8]) -> bool {
        verify_slices_are_equal(&self.digest, &Token::of(text).digest).is_ok()
    }

    /// Whether this `Authorization` header carries the token.
    pub fn admits(&self, authorization: Option<&[u8]>) -> bool {
        authorization.and_then(bearer_token).is_some_and(|text| self.matches(text))
    }

    fn of(text: &[u8]) -> Token {
        let mut digest = [0; digest::SHA256_OUTPUT_LEN];
        digest.copy_from_slice(digest::digest(&digest::SHA256, text).as_ref());
        Token { digest }
    }
}

/// Hides the digest too: it would let a weak token be found by brute force.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(hidden)")
    }
}

/// The token in an `Authorization` header. Returns `None` if the scheme is not `Bearer`.
fn bearer_token(header: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = header.trim_ascii().split_at_checked(b"Bearer ".len())?;
    // Schemes are case-insensitive, and some clients send two spaces.
    scheme.eq_ignore_ascii_case(b"Bearer ").then(|| token.trim_ascii_start())
}

/// Why a token is unusable. No variant reveals any of its text.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// The file could not be read.
    #[error("cannot read the token in {}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The I/O error.
        source: io::Error,
    },
    /// The token is too short.
    #[error(
        "the token has {chars} characters, which can be guessed: \
         use at least {FEWEST_CHARS}, like those of `openssl rand -hex 32`"
    )]
    TooShort {
        /// Its length.
        chars: usize,
    },
    /// The token is too long.
    #[error("the token has more than {MOST_CHARS} characters: is this the right file?")]
    TooLong,
    /// The token has whitespace, a control character or a non-ASCII character.
    #[error(
        "the token has whitespace or a non-ASCII character: \
         use only letters, digits and punctuation, like those of `openssl rand -hex 32`"
    )]
    InvalidCharacter,
    /// The system's random number generator failed.
    #[error("no random bytes to generate a token from: write a token into a file, and name that file")]
    NoRandomness,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::error::Error;
    use std::fs;

    const TEXT: &str = "0123456789abcdef";

    #[test]
    fn a_token_admits_itself_and_nothing_else() {
        let token = Token::parse(TEXT).unwrap();
        for header in ["Bearer 0123456789abcdef", "bearer  0123456789abcdef ", "BEARER 0123456789abcdef"] {
            assert!(token.admits(Some(header.as_bytes())), "{header:?}");
        }
        for header in [
            "",
            "Bearer",
            "Bearer ",
            "Bearer 0123456789abcde",
            "Bearer 0123456789abcdef0",
            "Bearer 0123456789ABCDEF",
            "Bearer 0123456789abcdef,",
            "Bearer0123456789abcdef",
            "Basic 0123456789abcdef",
            "0123456789abcdef",
            "Bearer é123456789abcdef",
        ] {
            assert!(!token.admits(Some(header.as_bytes())), "{header:?}");
        }
        assert!(!token.admits(Some(b"Bearer \xff")));
        assert!(!token.admits(None));
    }

    #[test]
    fn a_generated_token_is_long_random_and_prefixed() {
        let (token, text) = Token::generate().unwrap();
        let (other, other_text) = Token::generate().unwrap();
        assert!(text.starts_with("rk_") && text.len() == 3 + 64, "{text}");
        assert_ne!(text, other_text);
        assert!(token.matches(text.as_bytes()) && !other.matches(text.as_bytes()));
        assert!(Token::parse(&text).unwrap().matches(text.as_bytes()));
    }

    #[test]
    fn a_token_is_never_shown() {
        let token = Token::parse(TEXT).unwrap();
        assert_eq!(format!("{token:?} {:#?}", Some(&token)), "Token(hidden) Some(\n    Token(hidden),\n)");
        let error = Token::parse("short-secret").unwrap_err();
        assert!(!format!("{error} {error:?}").contains("secret"));
    }

    #[test]
    fn a_token_file_may_have_whitespace_around_the_token() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        fs::write(&path, format!(" {TEXT}\r\n\n")).unwrap();
        assert!(Token::read(&path).unwrap().matches(TEXT.as_bytes()));
        fs::write(&path, b"0123456789abcde\xff").unwrap();
        assert!(matches!(Token::read(&path), Err(TokenError::InvalidCharacter)));
        fs::write(&path, "x".repeat(5000)).unwrap();
        let error = Token::read(&path).unwrap_err();
        assert!(error.to_string().starts_with("cannot read the token in "), "{error}");
        assert_eq!(error.source().unwrap().to_string(), "it has more than 4096 bytes");
        assert!(matches!(Token::read(folder.path()), Err(TokenError::Unreadable { .. })));
    }

    #[track_caller]
    fn assert_rejected(text: &str, expected: &str) {
        let error = Token::parse(text).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error:?} does not begin with {expected:?}");
    }

    #[test]
    fn an_invalid_token_is_rejected_with_a_remedy() {
        assert_rejected("", "the token has 0 characters, which can be guessed: use at least 16, like");
        assert_rejected("0123456789abcde", "the token has 15 characters, which");
        assert_rejected(
            "correct horse battery staple",
            "the token has whitespace or a non-ASCII character: use",
        );
        assert_rejected("0123456789abcdef\u{fffd}", "the token has whitespace or");
        assert_rejected("0123456789abcdef\0", "the token has whitespace or");
        assert_rejected(&"x".repeat(1025), "the token has more than 1024 characters: is");
        assert!(Token::parse(&"x".repeat(1024)).is_ok());
    }
}
