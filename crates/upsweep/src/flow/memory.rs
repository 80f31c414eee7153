//! Host memory with its dtype attached: the erased form in which operands reach CPU rungs.

use crate::error::{Error, Result};
use crate::types::{DType, Element};
use std::marker::PhantomData;

/// A borrowed host slice whose element type is known at run time.
#[derive(Clone, Copy, Debug)]
pub struct HostSlice<'a> {
    pointer: *const u8,
    len: usize,
    dtype: DType,
    borrow: PhantomData<&'a [u8]>,
}

// SAFETY: it is a shared borrow of `Element`s, which are `Send + Sync`.
unsafe impl Send for HostSlice<'_> {}
// SAFETY: as above.
unsafe impl Sync for HostSlice<'_> {}

impl<'a, T: Element> From<&'a [T]> for HostSlice<'a> {
    fn from(slice: &'a [T]) -> Self {
        HostSlice { pointer: slice.as_ptr().cast(), len: slice.len(), dtype: T::DTYPE, borrow: PhantomData }
    }
}

impl<'a> HostSlice<'a> {
    /// Elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there is no element.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The slice under its own type.
    ///
    /// # Errors
    /// [`Error::DTypeMismatch`] if `T` is another type.
    pub fn typed<T: Element>(&self) -> Result<&'a [T]> {
        if T::DTYPE != self.dtype {
            return Err(Error::DTypeMismatch { argument: "input", got: self.dtype, expected: T::DTYPE });
        }
        // SAFETY: built from a `&'a [T]` of the same dtype, and each dtype is exactly one Rust type.
        Ok(unsafe { std::slice::from_raw_parts(self.pointer.cast(), self.len) })
    }
}

/// A mutably borrowed host slice whose element type is known at run time.
#[derive(Debug)]
pub struct HostSliceMut<'a> {
    pointer: *mut u8,
    len: usize,
    dtype: DType,
    borrow: PhantomData<&'a mut [u8]>,
}

// SAFETY: it is an exclusive borrow of `Element`s, which are `Send`.
unsafe impl Send for HostSliceMut<'_> {}

impl<'a, T: Element> From<&'a mut [T]> for HostSliceMut<'a> {
    fn from(slice: &'a mut [T]) -> Self {
        HostSliceMut { pointer: slice.as_mut_ptr().cast(), len: slice.len(), dtype: T::DTYPE, borrow: PhantomData }
    }
}

impl<'a> HostSliceMut<'a> {
    /// Elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there is no element.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The slice under its own type.
    ///
    /// # Errors
    /// [`Error::DTypeMismatch`] if `T` is another type.
    pub fn typed<T: Element>(self) -> Result<&'a mut [T]> {
        if T::DTYPE != self.dtype {
            return Err(Error::DTypeMismatch { argument: "output", got: self.dtype, expected: T::DTYPE });
        }
        // SAFETY: built from a `&'a mut [T]` of the same dtype; `self` is consumed, so the borrow stays exclusive.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.pointer.cast(), self.len) })
    }
}
