//! Small files, read whole but never further than they have a reason to be long.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// The content of a file of at most `most` bytes.
pub(crate) fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    // One byte more than it may have tells a file that is too long from one that just fits.
    File::open(path)?.take(most + 1).read_to_end(&mut content)?;
    match content.len() as u64 > most {
        true => Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("it has more than {most} bytes"))),
        false => Ok(content),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_file_is_read_up_to_its_bound_and_not_a_byte_further() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("five");
        fs::write(&path, b"12345").unwrap();
        assert_eq!(read(&path, 5).unwrap(), b"12345");
        assert_eq!(read(&path, 4).unwrap_err().to_string(), "it has more than 4 bytes");
        assert_eq!(read(&folder.path().join("none"), 4).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
