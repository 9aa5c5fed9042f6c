//! Defects: the possible damages of a pool, under permanent codes.
//!
//! The engine refuses with these codes, the checker reports them, `docs/CHECK.md` explains them,
//! and `xtask tidy` compares the three.
//!
//! # Invariants
//!
//! - CD1: A code keeps its meaning and is never reused: see [`RETIRED`].
//! - CD2: The message of an error that is a defect begins with its code ([`FoundDefect`]).

use std::fmt;

use crate::ids::{AnodeNo, FilesetId, Place};

/// Codes out of use, and their replacements.
pub const RETIRED: [(&str, DefectCode); 2] =
    [("DT001", DefectCode::MP005), ("FM001", DefectCode::AG003)];

/// Severity of a defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// No data is lost or at risk: leaked space or a lost spare copy.
    Minor,
    /// Wrong counts or marks: repair before mounting for writing.
    Major,
    /// Bytes or names are lost or untrusted.
    Severe,
}

impl Severity {
    /// Returns the word in messages.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Severity::Minor => "minor",
            Severity::Major => "major",
            Severity::Severe => "severe",
        }
    }
}

macro_rules! codes {
    ($($name:ident $severity:ident $meaning:literal)*) => {
        /// The permanent code of a kind of defect.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum DefectCode {
            $(#[doc = $meaning] $name,)*
        }

        impl DefectCode {
            /// Every code.
            pub const ALL: &'static [DefectCode] = &[$(DefectCode::$name,)*];

            /// Returns the code as printed.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(DefectCode::$name => stringify!($name),)* }
            }

            /// Returns the severity.
            #[must_use]
            pub fn severity(self) -> Severity {
                match self { $(DefectCode::$name => Severity::$severity,)* }
            }

            /// Returns the meaning, in a sentence.
            #[must_use]
            pub fn meaning(self) -> &'static str {
                match self { $(DefectCode::$name => $meaning,)* }
            }
        }
    };
}

codes! {
    SB001 Minor "A copy of the superblock is not one."
    SB002 Minor "A copy of the superblock fails its checksum."
    SB003 Minor "A copy of the superblock was written by newer software."
    SB004 Minor "A copy of the superblock names features that this software does not know."
    SB005 Minor "A copy of the superblock is the copy of another position."
    SB006 Minor "A copy of the superblock has a field out of its bounds, or can't be read."
    SB007 Minor "A copy of the superblock is of an older format."
    SB008 Minor "A copy of the superblock is older than the current one."
    IO001 Severe "The device could not read this range."
    JR001 Severe "No head of the journal verifies, so the log can't be replayed."
    JR002 Severe "The log breaks off before what was durable."
    JR003 Severe "A record of the log says what can't be so."
    JR004 Severe "A page does not verify after recovery."
    JR005 Severe "The log has outgrown its ring."
    JR006 Severe "The newest head of the journal is lost, and the log was used after it."
    JR007 Severe "The positions of the log, or the epochs, are used up."
    JR008 Minor "A copy of a head of the journal can't be used, or is older than its twin."
    PG001 Severe "No metadata page is where one should be."
    PG002 Severe "A metadata page fails its checksum."
    PG003 Severe "A metadata page was written by newer software."
    PG004 Severe "A metadata page belongs to another pool."
    PG005 Severe "A metadata page says that it belongs elsewhere."
    PG006 Severe "A metadata page is of an unknown kind."
    PG007 Severe "A metadata page is not the one that its pointer stands for."
    PG008 Severe "A metadata page has a field out of its bounds."
    PG009 Severe "A metadata page is older than the one that last went home: a write was lost."
    AG001 Major "An entry of the group table can't be so."
    AG002 Major "A group descriptor contradicts the superblock."
    AG003 Severe "A fragment that something points to is marked free."
    AG004 Minor "A fragment that nothing points to is marked in use."
    AG005 Major "A group's count of fragments in use is wrong."
    AG006 Major "A group's count of segments in use is wrong."
    AG007 Major "A total of the pool is wrong."
    AG008 Severe "Something points into a group that was never initialised."
    AG009 Severe "A fragment that was taken for free is marked in use."
    AG010 Severe "The group table says that a group was never used, and its descriptor lies there."
    AG011 Minor "An LSN page can't be used: lost writes of the pages that it lists are not told."
    AL001 Severe "A count on disk contradicts what is taken or freed."
    SG001 Major "A segment is of an unknown kind."
    SG002 Major "A segment's count of live fragments is wrong."
    SG003 Major "A page lies in a segment that is not for metadata."
    SG004 Major "A block lies in a segment that is not for data."
    SG005 Major "A segment under the front of a group is not for metadata."
    SG006 Minor "A block lies in a disk group without the role data."
    MP001 Severe "A pointer leads outside the groups, or into the front of one."
    MP002 Severe "Two owners claim the same fragment."
    MP003 Severe "A pointer says what can't be so in its container."
    MP004 Major "A block lies past the end of its file."
    MP005 Severe "The bytes of a block are not those that were written."
    MP006 Severe "A container has no page where one must be."
    MP007 Severe "A container has a page where none may be."
    MP008 Major "A block's birth is not the one that its segment's summary has."
    AN001 Severe "An anode fails its checksum."
    AN002 Severe "An anode has a field out of its bounds."
    AN003 Severe "An anode lies in the slot of another."
    AN004 Major "An anode's count of fragments is wrong."
    AN005 Major "A container's count of pages is wrong."
    AN006 Severe "A reserved anode is missing or of the wrong kind."
    XA001 Severe "An attribute in a container can't be so."
    XA002 Severe "An anode names a container of attributes that is not its own."
    XA003 Minor "No anode names a container of attributes."
    XA004 Severe "The pages of a container are not those that its attributes lie in."
    XA005 Severe "An access list can't be so."
    AM001 Severe "An anode in use is marked free in the anode map."
    AM002 Minor "A free anode is marked in use in the anode map."
    OR001 Major "The orphan list names an anode that is no orphan."
    OR002 Minor "An anode without a name is not in the orphan list."
    DR001 Severe "The entries of a directory page do not tile it."
    DR002 Severe "A dirent has a field out of its bounds."
    DR003 Major "A directory page counts its names wrong."
    DR004 Major "A directory page counts its bytes in use wrong."
    DR005 Major "Two names of a directory page have the same cookie."
    DR006 Severe "A name lies in a directory page that a lookup does not read."
    DR007 Severe "A name's hash is not that of the name, so no lookup finds it."
    DR008 Severe "The pages of a directory do not cover every hash exactly once."
    DR009 Major "A directory has a name twice."
    DR010 Severe "A name leads to an anode that is free."
    DR011 Severe "A name leads to an anode of another generation."
    DR012 Major "A name says another kind than its anode."
    DR013 Major "A directory counts its names wrong."
    DR014 Major "A pointer tells wrongly of a directory page's last split."
    LN001 Major "A file's link count is not its number of names."
    LN002 Severe "A directory has several names, or the root has one."
    LN003 Major "A directory's parent is not the directory that names it."
    LN004 Severe "An anode has links but no name."
    LN005 Severe "A directory can't be reached from the root."
    LN006 Major "A directory's link count is not two and its subdirectories."
    FS001 Severe "A fileset entry fails its checksum."
    FS002 Severe "A fileset entry has a field out of its bounds."
    FS003 Major "A fileset's count of anodes is wrong."
    FS004 Major "An anode lies past the end that its fileset states."
    FS005 Severe "Two filesets have the same identity."
    FS006 Major "A fileset counts the pages or fragments of its anode table wrong."
    FS007 Severe "The pool's fileset table is missing."
    FS008 Major "Two filesets have the same name."
    FS009 Major "A fileset is below one that is not there, or below itself."
    FS010 Severe "A fileset's parent is not the snapshot that it says."
    FS011 Major "A fileset has what its snapshot should have as well."
    FS012 Major "A fileset's count of the fragments that it references is wrong."
    FS013 Major "A snapshot has what was made after it was taken."
    FS014 Minor "A fileset reserves room, and its entry says that it never did."
    FS015 Major "The usage of a user, a group or a project is counted wrong."
    FS016 Major "A record of a quota can't be so."
}

impl DefectCode {
    /// Returns a defect of this kind; `what` has the numbers.
    #[must_use]
    pub fn found(self, what: impl Into<String>) -> Defect {
        Defect { code: self, subject: Subject::default(), place: None, what: what.into() }
    }
}

impl fmt::Display for DefectCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The object with the defect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Subject {
    /// The fileset; 0: the pool itself.
    pub fileset: FilesetId,
    /// The anode; 0: the fileset's anode table, or none.
    pub anode: AnodeNo,
}

/// One broken invariant. Displayed as `CODE at place: what`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Defect {
    /// Kind of defect.
    pub code: DefectCode,
    /// Damaged object.
    pub subject: Subject,
    /// Place in the pool.
    pub place: Option<Place>,
    /// Description of the finding, with its numbers.
    pub what: String,
}

impl Defect {
    /// Sets the place.
    #[must_use]
    pub fn at(self, place: Place) -> Defect {
        Defect { place: Some(place), ..self }
    }

    /// Sets the subject to `anode` of `fileset`.
    #[must_use]
    pub fn of(self, fileset: FilesetId, anode: AnodeNo) -> Defect {
        Defect { subject: Subject { fileset, anode }, ..self }
    }
}

impl fmt::Display for Defect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        head(f, self.code, self.place)?;
        f.write_str(&self.what)
    }
}

fn head(f: &mut impl fmt::Write, code: DefectCode, place: Option<Place>) -> fmt::Result {
    match place {
        Some(place) => write!(f, "{code} at {place}: "),
        None => write!(f, "{code}: "),
    }
}

/// An error that is a defect. CD2: its message is `CODE at place: what` or `CODE: what`.
pub trait FoundDefect: fmt::Display {
    /// Returns the kind of defect.
    fn code(&self) -> DefectCode;

    /// Returns the place in the pool.
    fn place(&self) -> Option<Place> {
        None
    }
}

impl<E: FoundDefect> From<E> for Defect {
    fn from(error: E) -> Defect {
        let (code, place) = (error.code(), error.place());
        let (message, mut prefix) = (error.to_string(), String::new());
        head(&mut prefix, code, place).expect("a string takes all");
        let what = message.strip_prefix(&prefix).unwrap_or(&message).to_owned();
        Defect { code, subject: Subject::default(), place, what }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn codes_are_five_characters_and_differ() {
        let names: BTreeSet<_> = DefectCode::ALL.iter().map(|code| code.name()).collect();
        assert_eq!(names.len(), DefectCode::ALL.len());
        assert!(names.iter().all(|name| name.len() == 5));
        assert!(RETIRED.iter().all(|(name, _)| !names.contains(name)));
    }

    #[test]
    fn an_error_and_its_defect_say_the_same() {
        let place = Place::new(0, 1, 2);
        let error = crate::page::PageError::BadMagic { place, found: 7 };
        let defect = Defect::from(error.clone());
        assert_eq!((defect.code, defect.place), (DefectCode::PG001, Some(place)));
        assert_eq!(defect.to_string(), error.to_string());
        assert!(defect.what.starts_with("not a"), "{}", defect.what);
        let placeless = Defect::from(crate::attributes::AttributeDefect { offset: 1, what: "w" });
        assert_eq!(placeless.to_string(), "XA001: attribute at 1: w");
        assert_eq!(placeless.what, "attribute at 1: w");
    }
}
