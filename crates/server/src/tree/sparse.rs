//! The data map of a sparse file in a pax header: forms 0.0 and 0.1 of GNU tar.

use super::archive::Ranges;

pub(crate) fn of_records(records: &[(Vec<u8>, Vec<u8>)], most: usize) -> Result<Ranges, String> {
    let wrong = || "its map of holes is malformed".to_owned();
    let number = |text: &[u8]| std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    let mut numbers = Vec::new();
    for (key, value) in records {
        match &key[..] {
            b"GNU.sparse.offset" | b"GNU.sparse.numbytes" => {
                numbers.push(number(value).ok_or_else(wrong)?);
            }
            b"GNU.sparse.map" => {
                for text in value.split(|&byte| byte == b',').filter(|_| !value.is_empty()) {
                    numbers.push(number(text).ok_or_else(wrong)?);
                }
            }
            _ => {}
        }
    }
    if numbers.len() % 2 != 0 {
        return Err(wrong());
    }
    if numbers.len() / 2 > most {
        return Err(format!("it has more than {most} ranges between holes"));
    }
    // A range of length zero at the end marks the file size.
    let pairs = numbers.chunks_exact(2).map(|pair| (pair[0], pair[1]));
    Ok(pairs.filter(|&(_, length): &(u64, u64)| length > 0).collect())
}
