//! Plain device allocations (`cuMemAlloc`): what a memory checker knows the exact bounds of.

use crate::target::{poison, poison_word};
use cudarc::driver::{CudaContext, result, sys};
use std::sync::Arc;
use upsweep::Error;
use upsweep::device::cuda::Cuda;
use upsweep::types::DType;

/// Device memory that is freed when dropped, after the device has finished with it.
pub(super) struct Buffer {
    context: Arc<CudaContext>,
    address: u64,
    bytes: u64,
}

/// A driver error of the judge's own calls.
pub(super) fn failed(call: &'static str, asked: String) -> impl FnOnce(cudarc::driver::DriverError) -> Error {
    move |error| Error::Driver { call, asked, text: format!("{error:?}") }
}

impl Buffer {
    pub(super) fn new(cuda: &Cuda, bytes: u64) -> Result<Buffer, Error> {
        let context = cuda.context().clone();
        context.bind_to_thread().map_err(failed("cuCtxSetCurrent", String::new()))?;
        // The driver has no allocation of zero bytes.
        let bytes = bytes.max(1);
        // SAFETY: freed once, in drop.
        let address = unsafe { result::malloc_sync(bytes as usize) }.map_err(failed("cuMemAlloc", format!("{bytes} bytes")))?;
        Ok(Buffer { context, address, bytes })
    }

    pub(super) fn address(&self) -> u64 {
        self.address
    }

    pub(super) fn len(&self) -> u64 {
        self.bytes
    }

    pub(super) fn write(&self, from: &[u8]) -> Result<(), Error> {
        self.write_at(0, from)
    }

    pub(super) fn write_at(&self, offset: u64, from: &[u8]) -> Result<(), Error> {
        self.check(offset, from.len())?;
        if from.is_empty() {
            return Ok(());
        }
        // SAFETY: the range was checked; the host's bytes are read before the call returns.
        unsafe { result::memcpy_htod_sync(self.address + offset, from) }
            .map_err(failed("cuMemcpyHtoD", format!("{} bytes", from.len())))?;
        // From pageable memory the last part may still be on its way, and non-blocking streams do not wait for it.
        self.context.synchronize().map_err(failed("cuCtxSynchronize", String::new()))
    }

    pub(super) fn read(&self, into: &mut [u8]) -> Result<(), Error> {
        self.read_at(0, into)
    }

    pub(super) fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        self.check(offset, into.len())?;
        if into.is_empty() {
            return Ok(());
        }
        let asked = format!("{} bytes", into.len());
        // SAFETY: the range was checked; the call returns after the copy.
        unsafe { result::memcpy_dtoh_sync(into, self.address + offset) }.map_err(failed("cuMemcpyDtoH", asked))
    }

    pub(super) fn fill(&self, byte: u8) -> Result<(), Error> {
        self.check(0, 0)?;
        // SAFETY: the whole allocation.
        unsafe { result::memset_d8_sync(self.address, byte, self.bytes as usize) }
            .map_err(failed("cuMemsetD8", format!("{} bytes", self.bytes)))?;
        // The fill is asynchronous to the host and to non-blocking streams.
        self.context.synchronize().map_err(failed("cuCtxSynchronize", String::new()))
    }

    /// As [`crate::target::poison`] for bytes of an output, without sending them from the host: gigabytes are poisoned for
    /// every run.
    pub(super) fn poison(&self, offset: u64, bytes: usize, dtype: DType, run: u32) -> Result<(), Error> {
        self.check(offset, bytes)?;
        // A fill of words starts at a multiple of 4 bytes; the little that does not is sent.
        let words = if offset.is_multiple_of(4) { bytes / 4 } else { 0 };
        if words > 0 {
            // SAFETY: the range was checked; the start is a multiple of 4, as every allocation's is.
            unsafe { sys::cuMemsetD32_v2(self.address + offset, poison_word(dtype, run), words) }
                .result()
                .map_err(failed("cuMemsetD32", format!("{words} words")))?;
        }
        let mut rest = vec![0; bytes - 4 * words];
        poison(&mut rest, dtype, run);
        self.write_at(offset + words as u64 * 4, &rest)?;
        // The fill is asynchronous to the host and to non-blocking streams.
        self.context.synchronize().map_err(failed("cuCtxSynchronize", String::new()))
    }

    fn check(&self, offset: u64, len: usize) -> Result<(), Error> {
        self.context.bind_to_thread().map_err(failed("cuCtxSetCurrent", String::new()))?;
        if offset + len as u64 > self.bytes {
            let expected = self.bytes;
            return Err(Error::LengthMismatch { argument: "buffer", got: offset + len as u64, expected, unit: "bytes" });
        }
        Ok(())
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.context.bind_to_thread().is_ok() {
            let _ = self.context.synchronize();
            // SAFETY: allocated in `new`, freed once; the device has finished.
            let _ = unsafe { result::free_sync(self.address) };
        }
    }
}
