//! Which of a Cluster's slots a tag is in: CRC16 by XMODEM, modulo the number of slots.

/// How many slots a Cluster has.
pub(in crate::redis) const SLOTS: usize = 16_384;

const TABLE: [u16; 256] = table();

/// The slot that a hash tag is in: a key's own, or the part of it between braces.
pub(in crate::redis) fn slot(tag: &[u8]) -> u16 {
    let crc = tag.iter().fold(0_u16, |crc, byte| {
        let [high, _] = crc.to_be_bytes();
        crc << 8 ^ TABLE[usize::from(high ^ byte)]
    });
    crc & 0x3fff
}

const fn table() -> [u16; 256] {
    let mut table = [0; 256];
    let mut byte = 0_u16;
    while byte < 256 {
        let mut crc = byte << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 };
            bit += 1;
        }
        table[byte as usize] = crc;
        byte += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The check value that every catalogue of checksums gives for this one.
    #[test]
    fn the_checksum_is_the_one_that_clusters_use() {
        assert_eq!(slot(b"123456789"), 0x31c3);
        assert_eq!(slot(b""), 0);
        assert_eq!(slot(b"foo"), 12_182);
    }
}
