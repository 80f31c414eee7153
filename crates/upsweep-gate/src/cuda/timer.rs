//! Events and graph replays.

use super::buffer::failed;
use crate::error::Result;
use crate::record::HostCost;
use crate::statistics::Spread;
use crate::target::TimingRequest;
use cudarc::driver::{CudaEvent, CudaStream, sys};
use std::sync::Arc;
use std::time::Instant;
use upsweep::Error;
use upsweep::device::cuda::Cuda;

/// Kernels read up to 9 % slow for about 8 ms after large buffers were freed: so long the call itself runs before it is timed.
const SETTLE_SECONDS: f64 = 0.060;

/// At most so many calls for settling, whatever the estimate says.
const SETTLE_CALLS: u32 = 20_000;

/// A stream to time on.
pub(super) struct Timer {
    stream: Arc<CudaStream>,
}

fn driver(call: &'static str) -> impl FnOnce(cudarc::driver::DriverError) -> Error {
    failed(call, "timing".into())
}

impl Timer {
    pub(super) fn new(cuda: &Cuda) -> Result<Timer> {
        Ok(Timer { stream: cuda.context().new_stream().map_err(driver("cuStreamCreate"))? })
    }

    pub(super) fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    pub(super) fn wait(&self) -> Result<()> {
        Ok(self.stream.synchronize().map_err(driver("cuStreamSynchronize"))?)
    }

    fn event(&self) -> Result<CudaEvent> {
        let flags = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
        Ok(self.stream.context().new_event(flags).map_err(driver("cuEventCreate"))?)
    }

    fn record(&self, event: &CudaEvent) -> Result<()> {
        Ok(event.record(&self.stream).map_err(driver("cuEventRecord"))?)
    }

    /// Seconds between two events.
    fn between(&self, start: &CudaEvent, end: &CudaEvent) -> Result<f64> {
        Ok(f64::from(start.elapsed_ms(end).map_err(driver("cuEventElapsedTime"))?) * 1e-3)
    }

    /// Warm-up calls, then as many as fill the settling time.
    fn settle(&self, request: &TimingRequest, addresses: &[u64], call: &mut impl FnMut(u64) -> Result<(), Error>) -> Result<()> {
        let (start, end) = (self.event()?, self.event()?);
        let warm_up = request.warm_up.max(1);
        // Once without a clock: the first call of all loads the kernel.
        call(addresses[0])?;
        self.record(&start)?;
        for i in 0..warm_up {
            call(addresses[i as usize % addresses.len()])?;
        }
        self.record(&end)?;
        let each = self.between(&start, &end)? / f64::from(warm_up);
        let calls = ((SETTLE_SECONDS / each.max(1e-7)) as u32).min(SETTLE_CALLS);
        for i in 0..calls {
            call(addresses[i as usize % addresses.len()])?;
        }
        Ok(())
    }

    /// An event on each side of every call. The host runs ahead of the device: the settling calls are still queued when
    /// the timed ones are.
    pub(super) fn events(
        &self,
        request: &TimingRequest,
        addresses: &[u64],
        mut call: impl FnMut(u64) -> Result<(), Error>,
    ) -> Result<Vec<f64>> {
        let pairs = (0..request.repeats).map(|_| Ok((self.event()?, self.event()?))).collect::<Result<Vec<_>>>()?;
        self.settle(request, addresses, &mut call)?;
        for (i, (start, end)) in pairs.iter().enumerate() {
            self.record(start)?;
            call(addresses[i % addresses.len()])?;
            self.record(end)?;
        }
        self.wait()?;
        pairs.iter().map(|(start, end)| self.between(start, end)).collect()
    }

    /// Seconds a call of replays of a graph of `calls` calls.
    pub(super) fn graph(
        &self,
        cuda: &Cuda,
        request: &TimingRequest,
        calls: u32,
        addresses: &[u64],
        mut call: impl FnMut(u64) -> Result<(), Error>,
    ) -> Result<Vec<f64>> {
        self.settle(request, addresses, &mut call)?;
        self.wait()?;
        // SAFETY: the caller's buffers and prepared plans outlive this function, and every replay is waited for in it.
        let graph = unsafe {
            cuda.capture(&self.stream, |_| (0..calls as usize).try_for_each(|i| call(addresses[i % addresses.len()])))
        }?;
        for _ in 0..3 {
            graph.replay()?;
        }
        let pairs = (0..request.repeats).map(|_| Ok((self.event()?, self.event()?))).collect::<Result<Vec<_>>>()?;
        for (start, end) in &pairs {
            self.record(start)?;
            graph.replay()?;
            self.record(end)?;
        }
        self.wait()?;
        let each = |(start, end): &(CudaEvent, CudaEvent)| Ok(self.between(start, end)? / f64::from(calls));
        pairs.iter().map(each).collect()
    }

    /// Seconds a call of calls back to back through the eager path.
    pub(super) fn eager(
        &self,
        request: &TimingRequest,
        calls: u32,
        addresses: &[u64],
        mut call: impl FnMut(u64) -> Result<(), Error>,
    ) -> Result<Vec<f64>> {
        let (start, end) = (self.event()?, self.event()?);
        let mut seconds = Vec::with_capacity(request.repeats as usize);
        for _ in 0..request.repeats {
            self.record(&start)?;
            for i in 0..calls as usize {
                call(addresses[i % addresses.len()])?;
            }
            self.record(&end)?;
            self.wait()?;
            seconds.push(self.between(&start, &end)? / f64::from(calls));
        }
        Ok(seconds)
    }

    /// What the host spends on a call: batches of `calls`, each of which the device finishes before the next one begins, so that
    /// the host never waits for room in the driver's queue. The ways take turns: both meet the same clocks.
    pub(super) fn host(
        &self,
        request: &TimingRequest,
        calls: u32,
        mut call: impl FnMut(Way) -> Result<(), Error>,
    ) -> Result<HostCost> {
        let mut batch = |way: Way| -> Result<f64> {
            let start = Instant::now();
            for _ in 0..calls {
                call(way)?;
            }
            let seconds = start.elapsed().as_secs_f64() / f64::from(calls);
            self.wait()?;
            Ok(seconds)
        };
        let (mut enqueue, mut raw_launch) = (vec![], vec![]);
        for round in 0..request.warm_up + request.repeats {
            let pair = (batch(Way::Enqueue)?, batch(Way::RawLaunch)?);
            if round >= request.warm_up {
                enqueue.push(pair.0);
                raw_launch.push(pair.1);
            }
        }
        Ok(HostCost { calls: calls.into(), enqueue: Spread::of(&enqueue)?, raw_launch: Spread::of(&raw_launch)? })
    }
}

/// Ways to start the same work.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// Enqueueing the prepared plan.
    Enqueue,
    /// The driver's launch alone.
    RawLaunch,
}

/// What the management tool says of the device, where there is one.
#[derive(Default)]
pub(super) struct DeviceState {
    pub(super) driver: Option<String>,
    pub(super) clock_hertz: Option<f64>,
    pub(super) memory_clock_hertz: Option<f64>,
    pub(super) throttle: Option<String>,
}

/// Asks `nvidia-smi`; everything stays empty without it.
pub(super) fn device_state(ordinal: usize) -> DeviceState {
    let fields = "driver_version,clocks.sm,clocks.mem,clocks_event_reasons.active";
    let output = std::process::Command::new("nvidia-smi")
        .args([format!("--id={ordinal}"), format!("--query-gpu={fields}"), "--format=csv,noheader,nounits".into()])
        .output();
    let Some(text) = output.ok().filter(|o| o.status.success()).and_then(|o| String::from_utf8(o.stdout).ok()) else {
        return DeviceState::default();
    };
    let mut values = text.trim().split(',').map(str::trim);
    let driver = values.next().filter(|v| !v.is_empty()).map(String::from);
    let mut hertz = || values.next().and_then(|v| v.parse::<f64>().ok()).map(|megahertz| megahertz * 1e6);
    let (clock_hertz, memory_clock_hertz) = (hertz(), hertz());
    let throttle = values.next().filter(|v| v.trim_start_matches("0x").chars().any(|c| c != '0')).map(String::from);
    DeviceState { driver, clock_hertz, memory_clock_hertz, throttle }
}
