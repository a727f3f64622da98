package main

import (
	"os"
	"runtime"
	"slices"

	"softiser/config"
	"softiser/internal/cores"
)

// syncProcessors is how many processors Go's scheduler has, at least, in a process whose volumes
// are devices: 2 gave 0.6 of the durable writes of fio's io_uring on a loop device, 16 gave 1.1 to
// 1.3 (two cores, Zen 5).
const syncProcessors = 16

// spareProcessors gives Go's scheduler more processors than the machine has if volumes are on
// devices, or sync each write. A worker that syncs keeps one until the runtime's monitor takes it
// away; with as many as cores, two of them leave none for work. Where volumes are files it
// is left alone: their first writes wait for each other in the kernel, and more workers at once lose
// up to a third of them. It does nothing where GOMAXPROCS is set, and on one core, where a receiver that
// polls has to know that it is alone (see sockio.Waiter). Raised while volumes are served, by a reload or
// a place that is added, it stops the world once, for some microseconds; it is never lowered.
func spareProcessors(volumes []config.Volume) {
	if os.Getenv("GOMAXPROCS") != "" || cores.Count() == 1 || !slices.ContainsFunc(volumes, syncsMuch) {
		return
	}
	if runtime.GOMAXPROCS(0) < syncProcessors {
		runtime.GOMAXPROCS(syncProcessors)
	}
}

// syncsMuch reports whether the writes of a volume are more syncs than anything else.
func syncsMuch(v config.Volume) bool {
	return v.Type == config.VolumeRaw || v.Type == config.VolumeLVM || v.WriteThrough
}
