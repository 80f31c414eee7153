//! The input is dropped while the enqueued work still reads it.
use upsweep::device::cuda::{Cuda, Prepared};
use upsweep::flow::{DeviceMut, DeviceRef};
use upsweep::ops::reduce::{Reduce, ReduceDeviceOperands};

pub fn sound(cuda: &Cuda, prepared: &mut Prepared<Reduce>) -> upsweep::Result<Vec<f32>> {
    let stream = cuda.stream().clone();
    let input = cuda.upload(&[1.0f32])?;
    let mut output = cuda.upload(&[0.0f32])?;
    cuda.scope(&stream, |scope| {
        let operands = ReduceDeviceOperands {
            input: DeviceRef::of::<f32, _>(&input, &stream),
            output: DeviceMut::of::<f32, _>(&mut output, &stream),
        };
        scope.enqueue(prepared, operands, None)?;
        drop(input);
        Ok(())
    })?;
    cuda.download(&output)
}

fn main() {}
