//! The share of the processor that a worker has beside native tasks. Pure.

use ostler_model::limits::WORKER_CPU_MHZ;

/// What the live tasks of a worker reserved, and which share of the processor the worker has.
#[derive(Default)]
pub(crate) struct ReservedShare {
    /// MHz that the tasks reserved together.
    mhz: u64,
    /// The weight that was set last.
    weight: u32,
}

impl ReservedShare {
    /// Add what a task reserves, or take it from the sum.
    pub fn change(&mut self, cpu_mhz: u32, more: bool) {
        let mhz = u64::from(cpu_mhz);
        self.mhz = if more { self.mhz.saturating_add(mhz) } else { self.mhz.saturating_sub(mhz) };
    }

    /// The weight that fits what is reserved, if the present one is off by more than an eighth.
    /// Short tasks come and go, and setting a weight asks the kernel three times.
    pub fn next_weight(&mut self) -> Option<u32> {
        let fits = u32::try_from(self.mhz).unwrap_or(u32::MAX).saturating_add(WORKER_CPU_MHZ);
        let off = fits.abs_diff(self.weight) > fits.min(self.weight) / 8;
        off.then(|| {
            self.weight = fits;
            fits
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_weight_is_set_when_it_is_off_by_more_than_an_eighth_and_not_for_each_task() {
        let mut share = ReservedShare::default();
        let mut set = 0;
        for _ in 0..2_000 {
            share.change(10, true);
            set += usize::from(share.next_weight().is_some());
        }
        assert!((5..80).contains(&set), "{set} times for 2,000 tasks");
        let now = share.next_weight().unwrap_or(share.weight);
        assert!(now.abs_diff(20_000 + WORKER_CPU_MHZ) <= (20_000 + WORKER_CPU_MHZ) / 8);
        for _ in 0..2_000 {
            share.change(10, false);
            let _set = share.next_weight();
        }
        assert!(share.weight.abs_diff(WORKER_CPU_MHZ) <= WORKER_CPU_MHZ / 8 + 1);
    }
}
