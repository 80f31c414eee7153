//! cudarc's memory types as operands.

use crate::flow::{DeviceMut, DeviceRef};
use crate::types::Element;
use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut};

impl<'a> DeviceRef<'a> {
    /// A cudarc slice or view; `stream` waits for earlier writes that cudarc knows of.
    pub fn of<T: Element, S: DevicePtr<T>>(slice: &'a S, stream: &CudaStream) -> DeviceRef<'a> {
        let len = slice.len() as u64;
        let (address, _recorded) = slice.device_ptr(stream);
        // SAFETY: the slice owns that many elements of T for 'a, aligned by construction.
        unsafe { DeviceRef::from_raw_unchecked(address, len, T::DTYPE) }
    }
}

impl<'a> DeviceMut<'a> {
    /// A cudarc slice or view; `stream` waits for earlier reads and writes that cudarc knows of.
    pub fn of<T: Element, S: DevicePtrMut<T>>(slice: &'a mut S, stream: &CudaStream) -> DeviceMut<'a> {
        let len = slice.len() as u64;
        let (address, _recorded) = slice.device_ptr_mut(stream);
        // SAFETY: the slice owns that many elements of T, exclusively for 'a, aligned by construction.
        unsafe { DeviceMut::from_raw_unchecked(address, len, T::DTYPE) }
    }
}
