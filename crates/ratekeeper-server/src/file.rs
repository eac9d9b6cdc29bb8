//! Reads small files whole, up to a size limit.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// The content of a file of at most `max_bytes` bytes.
///
/// # Errors
/// If the file can't be read, or is larger.
pub fn read(path: &Path, max_bytes: u64) -> io::Result<Vec<u8>> {
    read_from(File::open(path)?, max_bytes)
}

/// Reads at most `max_bytes` bytes to the end.
///
/// # Errors
/// If reading fails, or if there are more.
pub fn read_from(reader: impl Read, max_bytes: u64) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    // One byte more than allowed tells a file that is too long from one that just fits.
    reader.take(max_bytes + 1).read_to_end(&mut content)?;
    if content.len() as u64 > max_bytes {
        Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("it has more than {max_bytes} bytes")))
    } else {
        Ok(content)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_file_above_the_limit_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("five");
        fs::write(&path, b"12345").unwrap();
        assert_eq!(read(&path, 5).unwrap(), b"12345");
        assert_eq!(read(&path, 4).unwrap_err().to_string(), "it has more than 4 bytes");
        assert_eq!(read(&folder.path().join("none"), 4).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
