//! The token that opens the admin API.
//!
//! Only its SHA-256 is kept. A token has so many bits that nobody can find one by trying, so a slow hash would add
//! nothing; and two digests of equal length are compared in constant time, so an answer's delay tells nothing of how
//! much of a guess was right. The text of a token is seen where it is read, and once where it is made.

use crate::file;
use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::{digest, rand};
use std::fmt::{self, Write as _};
use std::io;
use std::path::{Path, PathBuf};

/// The fewest characters of a token. Random letters and digits of this length have some 95 bits.
const FEWEST_CHARS: usize = 16;
/// The most characters of a token. A header line can carry it.
const MOST_CHARS: usize = 1024;
/// The most bytes of a file with a token, which may have blanks around it.
const MOST_FILE_BYTES: u64 = 4096;
/// How many random bytes a new token is made from.
const RANDOM_BYTES: usize = 32;
/// What a new token begins with, so that one that leaks is recognised by whoever finds it.
const PREFIX: &str = "rk_";

/// What whoever uses the admin API has to know, as a digest.
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
    /// Makes a token of 256 random bits, and gives its text. It can't be asked for again.
    ///
    /// # Errors
    /// If the system has no random bytes to give.
    pub fn generate() -> Result<(Token, String), TokenError> {
        let mut bytes = [0; RANDOM_BYTES];
        rand::fill(&mut bytes).map_err(|_| TokenError::NoRandomness)?;
        let mut text = PREFIX.to_owned();
        for byte in bytes {
            let _ = write!(text, "{byte:02x}");
        }
        Ok((Token::of(text.as_bytes()), text))
    }

    /// Reads a file that has nothing but a token in it. Blanks and line ends around it don't count.
    ///
    /// # Errors
    /// If the file can't be read, or has no good token in it.
    pub fn read(path: &Path) -> Result<Token, TokenError> {
        let unreadable = |source| TokenError::Unreadable { path: path.into(), source };
        let bytes = file::read(path, MOST_FILE_BYTES).map_err(unreadable)?;
        let text = str::from_utf8(&bytes).map_err(|_| TokenError::StrangeCharacter)?;
        Token::parse(text)
    }

    /// Takes a token as it was written. Blanks and line ends around it don't count.
    ///
    /// # Errors
    /// If it is too short, too long, or has characters that no header can carry.
    pub fn parse(text: &str) -> Result<Token, TokenError> {
        let text = text.trim();
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(TokenError::StrangeCharacter);
        }
        match text.len() {
            ..FEWEST_CHARS => Err(TokenError::TooShort { chars: text.len() }),
            FEWEST_CHARS..=MOST_CHARS => Ok(Token::of(text.as_bytes())),
            _ => Err(TokenError::TooLong),
        }
    }

    /// Whether this is the token. How long it takes depends on the length of `text` and on nothing else.
    pub fn matches(&self, text: &[u8]) -> bool {
        verify_slices_are_equal(&self.digest, &Token::of(text).digest).is_ok()
    }

    /// Whether a request with this `Authorization` header may pass.
    pub fn admits(&self, authorization: Option<&[u8]>) -> bool {
        authorization.and_then(bearer).is_some_and(|text| self.matches(text))
    }

    fn of(text: &[u8]) -> Token {
        let mut digest = [0; digest::SHA256_OUTPUT_LEN];
        digest.copy_from_slice(digest::digest(&digest::SHA256, text).as_ref());
        Token { digest }
    }
}

/// Says only that it is one: even a digest would let a weak token be found by trying.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(hidden)")
    }
}

/// What stands behind `Bearer` in an `Authorization` header, if that is what the header has.
fn bearer(header: &[u8]) -> Option<&[u8]> {
    let (scheme, behind) = header.trim_ascii().split_at_checked(b"Bearer ".len())?;
    // Schemes are written in either case, and some clients send two blanks.
    scheme.eq_ignore_ascii_case(b"Bearer ").then(|| behind.trim_ascii_start())
}

/// Why there is no token. None of these shows any of it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// The file could not be read.
    #[error("cannot read the token in {}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It has too few characters.
    #[error(
        "the token has {chars} characters, which can be guessed: \
         use at least {FEWEST_CHARS}, like those of `openssl rand -hex 32`"
    )]
    TooShort {
        /// How many it has.
        chars: usize,
    },
    /// It has too many characters.
    #[error("the token has more than {MOST_CHARS} characters: is this the right file?")]
    TooLong,
    /// It has a character that can't be seen, or is not ASCII.
    #[error(
        "the token has a blank or a character that is not ASCII: \
         use letters, digits and signs alone, like those of `openssl rand -hex 32`"
    )]
    StrangeCharacter,
    /// The system has no random bytes to give.
    #[error("the system gave no random bytes to make a token from: write one into a file, and name that")]
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
    fn a_new_token_is_long_random_and_recognisable() {
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
        let leaky = "short-secret";
        let said = Token::parse(leaky).unwrap_err();
        assert!(!format!("{said} {said:?}").contains("secret"));
    }

    #[test]
    fn a_file_has_the_token_and_perhaps_a_line_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        fs::write(&path, format!(" {TEXT}\r\n\n")).unwrap();
        assert!(Token::read(&path).unwrap().matches(TEXT.as_bytes()));
        fs::write(&path, b"0123456789abcde\xff").unwrap();
        assert!(matches!(Token::read(&path), Err(TokenError::StrangeCharacter)));
        fs::write(&path, "x".repeat(5000)).unwrap();
        let said = Token::read(&path).unwrap_err();
        assert!(said.to_string().starts_with("cannot read the token in "), "{said}");
        assert_eq!(said.source().unwrap().to_string(), "it has more than 4096 bytes");
        assert!(matches!(Token::read(folder.path()), Err(TokenError::Unreadable { .. })));
    }

    #[track_caller]
    fn refused(text: &str, said: &str) {
        let error = Token::parse(text).unwrap_err().to_string();
        assert!(error.starts_with(said), "{error:?} does not begin with {said:?}");
    }

    #[test]
    fn a_bad_token_is_refused_with_a_way_to_a_good_one() {
        refused("", "the token has 0 characters, which can be guessed: use at least 16, like");
        refused("0123456789abcde", "the token has 15 characters, which");
        refused(
            "correct horse battery staple",
            "the token has a blank or a character that is not ASCII: use",
        );
        refused("0123456789abcdef\u{fffd}", "the token has a blank or");
        refused("0123456789abcdef\0", "the token has a blank or");
        refused(&"x".repeat(1025), "the token has more than 1024 characters: is");
        assert!(Token::parse(&"x".repeat(1024)).is_ok());
    }
}
