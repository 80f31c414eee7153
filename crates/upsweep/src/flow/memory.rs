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

/// Borrowed device memory: address, elements, dtype. Built from cudarc's slices and views (feature `cuda`), or from a
/// raw pointer by the unsafe constructor.
#[derive(Clone, Copy, Debug)]
pub struct DeviceRef<'a> {
    address: u64,
    len: u64,
    dtype: DType,
    borrow: PhantomData<&'a [u8]>,
}

/// Mutably borrowed device memory: address, elements, dtype.
#[derive(Debug)]
pub struct DeviceMut<'a> {
    address: u64,
    len: u64,
    dtype: DType,
    borrow: PhantomData<&'a mut [u8]>,
}

macro_rules! device_memory {
    ($name:ident) => {
        impl<'a> $name<'a> {
            /// Memory that somebody else owns.
            ///
            /// # Errors
            /// [`Error::Misaligned`] if the address is not a multiple of the element size.
            ///
            /// # Safety
            /// `address` must point to `len` elements of `dtype` on the device of the stream it is used with, valid
            /// (and, if mutable, not otherwise used) until the work enqueued with it has finished.
            pub unsafe fn from_raw(address: u64, len: u64, dtype: DType) -> Result<Self> {
                if address % dtype.size() != 0 {
                    return Err(Error::Misaligned { argument: "address", address, alignment: dtype.size() });
                }
                Ok($name { address, len, dtype, borrow: PhantomData })
            }

            /// As [`Self::from_raw`], for memory that is aligned by construction.
            #[cfg(feature = "cuda")]
            pub(crate) unsafe fn from_raw_unchecked(address: u64, len: u64, dtype: DType) -> Self {
                $name { address, len, dtype, borrow: PhantomData }
            }

            /// Elements.
            pub fn len(&self) -> u64 {
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

            /// The device address.
            pub fn address(&self) -> u64 {
                self.address
            }
        }
    };
}
device_memory!(DeviceRef);
device_memory!(DeviceMut);

/// The device operands of a call in the order in which programs name them.
#[derive(Debug, Default)]
pub struct Bindings<'a> {
    /// Inputs: the problem's input, then its second one.
    pub inputs: [Option<DeviceRef<'a>>; 4],
    /// Outputs.
    pub outputs: [Option<DeviceMut<'a>>; 4],
}
