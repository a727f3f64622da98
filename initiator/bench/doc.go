// Package bench drives block volumes with a chosen load and reports what they
// did with it, in fio's terms.
//
// # Words
//
// A job is one load: a direction (read, randwrite, …), a block size, a queue
// depth, a range of the volume, a duration. Jobs come from the command line or
// from a job file in fio's ini grammar; both are lists of [Section] and go
// through one table of options. A job with numjobs=N runs as N clones. Jobs
// start together unless one says stonewall.
//
// # How a clone runs
//
// A clone owns iodepth slots; a slot is a Request, its buffer, and two time
// stamps. There is no goroutine per slot and none per clone: when the session
// calls Done, that call accounts the finished request, picks the next block,
// and submits the slot again.
//
//	start ──► Submit ×iodepth
//	             │
//	session ─────┴──► Done(slot) ──► account ──► next block ──► Submit(slot) ─┐
//	                       ▲                        │                         │
//	                       │                        ├─ rate limit: park, timer│
//	                       │                        └─ end: slot rests        │
//	                       └──────────────────────────────────────────────────┘
//
// Nothing is allocated per operation and nothing hops between goroutines.
//
// # Times
//
//	start ──slat──► handed to Submit ──clat──► Done called
//	└──────────────────lat────────────────────────┘
//
// slat is the generator's own work before the request is handed over (choosing
// the block, filling and checksumming the payload); clat is everything after.
// All are nanoseconds. Histograms have fio's log-linear buckets: 64 per power
// of two, so a percentile is within 1 % of the value measured.
//
// # Who waits for whom
//
// A slot that may not issue yet is parked: until a time (rates, thinktime,
// flow_sleep), until the other jobs of its flow have caught up, or until the search
// for latency_target allows another operation in flight. Whoever changes that hands
// it to the runner, and so do the end of the job's time and an interrupt: a parked
// slot never outlives its clone. Whoever wants to know the results of a running
// clone sends a slot that only asks.
//
// # Verification
//
// With verify=crc32c every block carries fio's own 44-byte header, so fio can
// check what this package wrote and the other way round. A [Ledger] knows for
// each block which write was issued, which was acknowledged, and which was
// made durable by FUA, or by a flush of the same run that has succeeded with no
// failed one since. The block must hold a generation between
// the last acknowledged and the last issued: an older one is stale, a block of
// another offset is misplaced, everything else is corrupt. The ledger can live
// in a file (verify-state), mapped shared: it survives kill -9 of this process,
// and a later verify-only run tells whether an acknowledged write was lost, or
// with verify-durable, after a loss of power, a durable one.
package bench
